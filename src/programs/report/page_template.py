"""The page as a template of Jinja2, which escapes all that is put in."""

TEMPLATE = """<!doctype html>
<html lang="en">
<!-- a page of scripts/report.py -->
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'nonce-{{ nonce }}';
 style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{{ title }}</title>
<style>{{ style | safe }}</style>
</head>
<body{% if every %} data-every="{{ every }}"{% endif %}>
<a class="skip" href="#main">to the content</a>
<div class="bar"><h1 class="hide-small">{{ title }}</h1><nav aria-label="Sections">
{%- for id, name in sections %}<a href="#{{ id }}">{{ name }}</a>{% endfor %}</nav>
<span class="soft small hide-small">{{ written }}</span>
{%- if every %}<label class="small"><input type="checkbox" id="renew" checked> renew</label>{% endif %}
<button id="theme" type="button" title="light or dark" aria-label="light or dark" hidden>◐</button></div>
<main id="main">
{%- macro span(ends, form) %}{% if ends %} <small>({{ form % ends[0] }} to {{ form % ends[1] }})</small>{% endif %}
{%- endmacro %}
{%- macro count(value) %}{% if value is none %}–{% else %}{{ "{:,.0f}".format(value) }}{% endif %}
{%- endmacro %}
{%- macro seconds(value) %}{% if value is none %}–{% elif value < 600 %}{{ "%.3g" % value }} s
{%- elif value < 36000 %}{{ "%.0f" % (value / 60) }} min{% else %}{{ "%.1f" % (value / 3600) }} h{% endif %}
{%- endmacro %}
{%- macro dot(i) %}<i class="dot" style="background:var(--run{{ i % 8 }})"></i>{% endmacro %}
{%- macro badge(run) %}
{%- set bad = run.findings | selectattr("severity", "eq", "finding") | list %}
<span class="badge {{ 'bad' if bad else 'good' if run.verdict == 'healthy' else '' }}">
{%- if bad %}{{ bad | length }} finding{{ "s" if bad | length > 1 }}: {{ bad | join(", ", attribute="id") }}
{%- else %}{{ run.verdict }}{% endif %}</span>{% endmacro %}
{%- macro finding(f) %}<div class="finding {{ f.severity }}"><h4>{{ f.severity }}: {{ f.id }}
 <span class="soft small">{{ f.metric }}, step {{ f.step }}
{%- if f.id != "not-finite" %}, {{ "%.4g" % f.value }}{% endif %}</span></h4>
<p><b>Saw</b> {{ f.saw }}</p><p><b>Likely cause</b> {{ f.cause }}</p>
<p><b>Change</b></p><ul>{% for c in f.change %}<li>{{ c }}</li>{% endfor %}</ul>
<p class="soft small">Source: {{ f.source }}</p></div>{% endmacro %}
{%- for bad in failed %}<div class="box"><header><h3>{{ bad.name }}</h3><span class="badge bad">not readable
</span></header>
<p class="text">{{ bad.error }}</p></div>{% endfor %}
{%- if runs %}
<section id="runs">
{%- if runs | length > 1 %}
<h2>Runs</h2><div class="scroll box"><table id="overview"><tr><th>run</th><th>held out</th><th>verdict</th>
<th>best (step)</th><th class="number">steps</th><th class="number">samples</th>
<th class="number">time</th></tr>
{%- for run in runs %}<tr><td>{{ dot(loop.index0) }} {{ run.name }}</td>
{%- if run.held_out %}{% set h = run.held_out %}<td><span class="ends">{{ "%.3f" % h.before }}
{{- span(h.before_interval, "%.3f") }}</span>{% if h.several %} <span class="ends">→ {{ "%.3f" % h.after }}
{{- span(h.after_interval, "%.3f") }}</span>{% endif %}
{%- if h.name != "held-out accuracy" %} <span class="small soft">{{ h.name[9:] }}</span>{% endif %}</td>
{%- else %}<td class="soft">none</td>{% endif %}<td>{{ badge(run) }}
<div class="small soft">{{ run.outcome.text }}</div></td>
<td>{% if run.held_out and run.held_out.several %}{{ "%.3f" % run.held_out.best }} ({{ run.held_out.best_step }})
{%- endif %}</td>
<td class="number">{{ count(run.spent.steps) }}</td><td class="number">{{ count(run.spent.samples) }}</td>
<td class="number">{{ seconds(run.spent.seconds) }}</td></tr>{% endfor %}</table></div>
{%- if differing %}
<h2 id="differs">What differs in the settings</h2>
<div class="scroll box differing" tabindex="0"><table><tr><th>setting</th>
{%- for run in runs %}<th>{{ dot(loop.index0) }} {{ run.name }}</th>{% endfor %}</tr>
{%- for name, values in differing %}<tr><td><code>{{ name }}</code></td>
{%- for value in values %}<td class="value mono">{{ value }}</td>{% endfor %}</tr>{% endfor %}</table></div>
{%- elif runs | length > 1 and has_settings %}<p class="soft">The settings of these runs do not differ.</p>{% endif %}
{%- endif %}
<h2>{{ "What came of it" if runs | length == 1 else "Each run" }}</h2>
<div class="cards{{ ' one' if runs | length == 1 }}">
{%- for run in runs %}
<article class="box run"><header>{{ dot(loop.index0) }}<h3>{{ run.name }}</h3>{{ badge(run) }}
<span class="soft small">{{ run.trainer }} · {{ run.format }}
{%- for fact in run.about %} · {{ fact }}{% endfor %}</span></header>
<div>
{%- if run.held_out %}{% set h = run.held_out %}
<p class="soft">{{ h.name }}{% if h.several %}, step {{ h.first }} → {{ h.last }}{% endif %}</p>
<p class="big">{{ "%.3f" % h.before }}{{ span(h.before_interval, "%.3f") }}
{%- if h.several %} → {{ "%.3f" % h.after }}{{ span(h.after_interval, "%.3f") }}{% endif %}</p>
{%- endif %}
<dl class="asked"><dt>Did it learn?</dt><dd>{{ run.learnt }}</dd><dt>Is it cheating?</dt><dd>{{ run.cheats }}</dd>
<dt>Why did it stop?</dt><dd>{{ run.outcome.text }}</dd></dl>
</div><div>
{%- if run.small %}{% set s = run.small %}
<figure><svg class="small-curve" viewBox="0 0 {{ s.width }} {{ s.height }}" preserveAspectRatio="none" role="img"
 aria-label="score and held-out figure over the steps">
{%- for name, path in s.paths.items() %}<path class="{{ name }}" d="{{ path }}" fill="none" stroke-width="1.4"
 vector-effect="non-scaling-stroke"/>{% endfor %}</svg>
<figcaption class="small soft">training score from {{ '%.3g' % scores[0] }} to {{ '%.3g' % scores[1] }},
 steps {{ s.steps[0] }} to {{ s.steps[1] }}:
{%- for name, ends in s.ends.items() %} <span class="key-{{ name }}">━</span>
 {{ "held out" if name == "held_out" else "training score" }} {{ ends[0] }} → {{ ends[1] }}{% endfor %}
</figcaption></figure>
{%- endif %}
<div class="figures small">
{%- if run.held_out and run.held_out.several %}<span>best held out <b>{{ "%.3f" % run.held_out.best }}</b> at step
 <b>{{ run.held_out.best_step }}</b></span>{% endif %}
<span>samples <b>{{ count(run.spent.samples) }}</b></span>
{%- if run.spent.tokens %}<span>sampled tokens <b>{{ count(run.spent.tokens) }}</b></span>{% endif %}
<span>time <b>{{ seconds(run.spent.seconds) }}</b></span></div>
</div><div class="wide">
{%- if run.remarks %}<details open><summary>What of the log was left out</summary><ul class="remarks small">
{%- for remark in run.remarks %}<li>{{ remark }}</li>{% endfor %}</ul></details>{% endif %}
{%- set bad = run.findings | selectattr("severity", "eq", "finding") | list %}
{%- set notes = run.findings | selectattr("severity", "ne", "finding") | list %}
{%- if bad %}<details{{ " open" if runs | length < 3 }}><summary>What diagnose.py finds, why, and what to
 change</summary>
{%- for f in bad %}{{ finding(f) }}{% endfor %}</details>{% endif %}
{%- if notes %}
<details><summary>{{ notes | length }} note{{ "s" if notes | length > 1 }}
 that ask{{ "s" if notes | length == 1 }} for no change: {{ notes | join(", ", attribute="id") }}</summary>
{%- for f in notes %}{{ finding(f) }}{% endfor %}</details>{% endif %}
{%- if run.not_judged %}<p class="small soft">Not judged, as the log has no figures for it:
 {{ run.not_judged | join(", ") }}</p>{% endif %}
</div></article>{% endfor %}</div></section>
{%- endif %}
{%- if evaluations %}
<section id="evaluations"><h2>Evaluations</h2>
{%- for e in evaluations %}<div class="box scroll"><header><h3>{{ e.name }}
</h3><span class="soft small">{{ e.model }}</span>
</header><table><tr><th>task</th><th>metric</th><th class="number">value</th><th>95 % interval</th><th>rows</th></tr>
{%- for row in e.rows %}<tr><td>{{ row.task }}</td><td>{{ row.metric }}</td><td class="number">{{ row.value }}</td>
<td>{{ row.interval }}</td><td>{{ row.rows }}</td></tr>{% endfor %}</table>
{%- for remark in e.remarks %}<p class="small soft">{{ remark }}</p>{% endfor %}
{%- if e.tests %}<h4>Against {{ evaluations[0].name }}, row by row</h4><ul class="remarks">
{%- for test in e.tests %}<li>{{ test }}</li>{% endfor %}</ul>{% endif %}
{%- if e.problem %}<p class="soft">No paired test: {{ e.problem }}</p>{% endif %}
</div>{% endfor %}</section>
{%- endif %}
{%- if runs %}
<section id="curves"><h2>Curves</h2><noscript><p>The curves need JavaScript.</p></noscript><div id="plots">
</div></section>
{%- endif %}
{%- if samples_kept %}
<section id="samples"><h2>Samples</h2>
{%- if samples_kept < samples_of %}<p class="small soft" id="thinned">{{ "{:,}".format(samples_kept) }} of
 {{ "{:,}".format(samples_of) }} samples are in this page, whole groups spread over the steps, to keep it below
 {{ max_mb }} MB; --max_mb gives it more, samples.jsonl has all.</p>{% endif %}
<noscript><p>The samples need JavaScript.</p></noscript><div id="browser"></div></section>
{%- endif %}
{%- if runs %}
<section id="time"><h2>Time and memory</h2><div class="cards">
{%- for run in runs %}{% set t = run.time %}
<div class="box scroll"><header>{{ dot(loop.index0) }}<h3>{{ run.name }}</h3></header>
{%- if t.phases %}<div class="shares" aria-hidden="true">{% for p in t.phases %}<i style="width:
{{- '%.1f' % (100 * p.share) }}%;background:var(--run{{ loop.index0 % 8 }})"></i>{% endfor %}</div>
<table><tr><th>of a step (median)</th><th class="number">s, first</th><th class="number">s, last</th>
<th class="number">share</th></tr>
{%- for p in t.phases %}<tr><td>{{ dot(loop.index0) }} {{ p.name }}</td><td class="number">{{ "%.3g" % p.first }}</td>
<td class="number">{{ "%.3g" % p.last }}</td><td class="number">{{ "%.0f" % (100 * p.share) }} %</td></tr>{% endfor %}
{%- for o in t.others %}<tr><td>{{ o.name }}</td><td class="number">{{ count(o.first) }}</td>
<td class="number">{{ count(o.last) }}</td><td></td></tr>{% endfor %}</table>
{%- else %}<p class="soft">The log has no times.</p>{% endif %}
{%- if t.phases or t.others %}<p class="small soft">Medians over the first and the last stretch of the run, of 3 to 20
 steps.</p>{% endif %}
{%- if t.memory %}<table class="memory"><tr><th>memory (median)</th>
<th class="number">first third</th><th class="number">last third</th><th class="number">growth</th></tr>
{%- for m in t.memory %}<tr><td>{{ m.name }}</td><td class="number">{{ "%.4g" % m.first }}</td>
<td class="number">{{ "%.4g" % m.last }}</td><td class="number">
{%- if m.grown is not none %}{{ "%+.1f" % (100 * m.grown) }} %{% endif %}</td></tr>{% endfor %}</table>
{%- else %}<p class="small soft">The log has no figures of memory.</p>{% endif %}</div>{% endfor %}
</div></section>
<section id="settings"><h2>Settings</h2><div class="cards">
{%- for run in runs %}<div class="box"><header>{{ dot(loop.index0) }}<h3>{{ run.name }}</h3></header>
{%- if run.command %}<p>To repeat it:</p><pre class="command">{{ run.command }}</pre>{% endif %}
{%- if run.versions %}<p class="small">Versions: {% for k, v in run.versions.items() %}{{ k }} {{ v }}
{{- ", " if not loop.last }}{% endfor %}</p>{% else %}<p class="small soft">The run did not log its versions.</p>
{% endif %}
{%- if run.settings %}<details><summary>All {{ run.settings | length }} settings</summary><div class="scroll"><table>
{%- for name, value in run.settings.items() %}<tr><td><code>{{ name }}</code>
</td><td class="value mono">{{ value }}</td></tr>
{%- endfor %}</table></div></details>{% else %}<p class="small soft">No settings lie beside the log.</p>{% endif %}
</div>{% endfor %}</div></section>
{%- endif %}
</main>
<script type="text/plain" id="curve-data">{{ curve_data | safe }}</script>
<script type="text/plain" id="sample-data">{{ sample_data | safe }}</script>
<script type="text/plain" id="sample-names">{{ sample_names | safe }}</script>
<script type="text/plain" id="plot-library">{{ library | safe }}</script>
<script nonce="{{ nonce }}">{{ script | safe }}</script>
</body></html>
"""
