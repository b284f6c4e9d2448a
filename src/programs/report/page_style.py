"""The page's style sheet: light and dark, from phone width up."""

STYLE = """
:root{color-scheme:light dark;--ink:#1d2330;--soft:#5b6475;--line:#d9dee7;--paper:#fff;--back:#f4f6f9;--mark:#0b5cad;
--good:#17703b;--good-back:#e2f4e8;--bad:#a8201a;--bad-back:#fdeae8;--note:#7a5200;--note-back:#fdf3dc;
--add:#d3f0dc;--cut:#fbdbd8;--run0:#0072b2;--run1:#d55e00;--run2:#00875f;--run3:#b0518a;--run4:#a06a00;--run5:#3a8fc4;
--run6:#6a4fa3;--run7:#5c5c5c}
@media(prefers-color-scheme:dark){:root:not([data-theme=light]){--ink:#e6e9ef;--soft:#a3acbb;--line:#363d4a;
--paper:#1b2028;--back:#12161c;--mark:#7cb8ff;--good:#7ddb9d;--good-back:#153423;--bad:#ff9d94;--bad-back:#41201d;
--note:#f0c767;--note-back:#3a2f12;--add:#1d4a2d;--cut:#5a2622;--run0:#5ab4ec;--run1:#ff9248;--run2:#3fcf9f;
--run3:#e79cc9;--run4:#edb84a;--run5:#9bd3f7;--run6:#b7a2ea;--run7:#b9b9b9}}
:root[data-theme=dark]{color-scheme:dark;--ink:#e6e9ef;--soft:#a3acbb;--line:#363d4a;--paper:#1b2028;--back:#12161c;
--mark:#7cb8ff;--good:#7ddb9d;--good-back:#153423;--bad:#ff9d94;--bad-back:#41201d;--note:#f0c767;--note-back:#3a2f12;
--add:#1d4a2d;--cut:#5a2622;--run0:#5ab4ec;--run1:#ff9248;--run2:#3fcf9f;--run3:#e79cc9;--run4:#edb84a;--run5:#9bd3f7;
--run6:#b7a2ea;--run7:#b9b9b9}
:root[data-theme=light]{color-scheme:light}
*{box-sizing:border-box}
html{scroll-padding-top:3.2rem;-webkit-text-size-adjust:100%}
body{margin:0;font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;color:var(--ink);background:var(--back)}
h1,h2,h3,h4,p,ul,ol,dl,dd,figure{margin:0;padding:0}
h1{font-size:1.05rem}h2{font-size:1.25rem;margin:2rem 0 .7rem}h3{font-size:1.02rem}h4{font-size:.92rem}
a{color:var(--mark)}
.bar{position:sticky;top:0;z-index:9;background:var(--paper);border-bottom:1px solid var(--line);padding:.45rem 1rem;
display:flex;gap:.3rem 1rem;align-items:center;white-space:nowrap;overflow-x:auto;scrollbar-width:none}
.bar nav{display:flex;gap:.9rem;flex:1}.bar nav a{text-decoration:none;padding:.15rem 0}
.bar nav a:hover{text-decoration:underline}
main{max-width:90rem;margin:0 auto;padding:1rem}
.skip{position:absolute;left:-99rem}.skip:focus{left:1rem;top:.4rem;z-index:10;background:var(--paper);
padding:.3rem .6rem}
:focus-visible{outline:2px solid var(--mark);outline-offset:2px}
.cards{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,25rem),1fr));align-items:start}
.box{background:var(--paper);border:1px solid var(--line);border-radius:.6rem;padding:1rem;min-width:0}
.one .box.run{display:grid;grid-template-columns:minmax(0,1.15fr) minmax(0,1fr);gap:0 2rem}
.one .box.run>header,.one .box.run>.wide{grid-column:1/-1}
.box header{display:flex;flex-wrap:wrap;gap:.2rem .7rem;align-items:baseline;margin-bottom:.5rem}
.dot{display:inline-block;width:.75em;height:.75em;border-radius:50%;flex:none}
.soft{color:var(--soft)}.small{font-size:.86rem}
.badge{display:inline-block;border-radius:.7rem;padding:.05rem .65rem;font-size:.86rem;font-weight:600;
background:var(--note-back);color:var(--note)}
.badge.good{background:var(--good-back);color:var(--good)}.badge.bad{background:var(--bad-back);color:var(--bad)}
.big{font-size:1.7rem;font-weight:650;line-height:1.25}.big small{font-size:.85rem;font-weight:400;color:var(--soft)}
.asked{margin:.7rem 0;display:grid;gap:.15rem .8rem;grid-template-columns:max-content 1fr}
.asked dt{font-weight:600}.asked dd{min-width:0;overflow-wrap:anywhere}
.figures{display:flex;flex-wrap:wrap;gap:.3rem 1.4rem;margin:.5rem 0}.figures b{font-weight:650}
svg.small-curve{width:100%;height:auto;max-height:9.5rem;display:block;background:var(--back);border-radius:.4rem}
svg .score{stroke:var(--run1)}svg .held_out{stroke:var(--run0);stroke-width:2.4}
.key-score{color:var(--run1)}.key-held_out{color:var(--run0)}
details{margin:.5rem 0 0}summary{cursor:pointer}
.finding{border-left:4px solid var(--bad);background:var(--bad-back);border-radius:.3rem;padding:.5rem .8rem;
margin-top:.6rem}
.finding.note{border-color:var(--note);background:var(--note-back)}
.finding ul{padding-left:1.2rem}.finding p,.finding li{overflow-wrap:anywhere}
.remarks{padding-left:1.2rem;overflow-wrap:anywhere}
.scroll{overflow-x:auto;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;font-size:.92rem}
th,td{text-align:left;padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:baseline}
td:first-child{white-space:nowrap}td.value:first-child{white-space:normal}
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}
code,pre,.mono{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre,.text{white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:isolate;direction:ltr;margin:0}
pre.command{background:var(--back);border:1px solid var(--line);border-radius:.4rem;padding:.5rem .7rem}
.value{overflow-wrap:anywhere;max-width:28rem;min-width:5rem}
.shares{display:flex;height:1.1rem;border-radius:.3rem;overflow:hidden;margin:.4rem 0}.shares i{display:block;
min-width:1px}
.controls{display:flex;flex-wrap:wrap;gap:.5rem 1rem;align-items:center;margin-bottom:.7rem}
.controls label{display:flex;gap:.35rem;align-items:center;min-width:0;max-width:100%}.controls select{min-width:0}
input,select,button{font:inherit;color:inherit;background:var(--paper);border:1px solid var(--line);
border-radius:.35rem;
padding:.22rem .5rem;max-width:100%}
input[type=number]{width:5.2rem}input[type=checkbox],input[type=range]{padding:0}
button{cursor:pointer}button[aria-pressed=true],button[aria-selected=true]{border-color:var(--mark);color:var(--mark);
font-weight:600}
.charts{display:grid;gap:.8rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,24rem),1fr));margin-top:.5rem}
.chart{padding:.6rem .7rem}.chart h4{overflow-wrap:anywhere}
.plot{height:230px;touch-action:pan-y}
.meaning{font-size:.83rem;color:var(--soft);min-height:2.6em;display:-webkit-box;-webkit-line-clamp:2;
-webkit-box-orient:vertical;overflow:hidden}
.meaning.whole{-webkit-line-clamp:99}button.more{border:0;background:none;padding:0;color:var(--mark);font-size:.83rem}
.grid{border:1px solid var(--line);border-radius:.5rem;background:var(--paper);overflow:hidden}
.grid{--columns:5.5rem 4rem 5rem minmax(6rem,1fr) minmax(8rem,2fr)}
.grid .head,.grid .row{display:grid;grid-template-columns:var(--columns);gap:.6rem;padding:0 .7rem;align-items:center;
height:30px;white-space:nowrap}
.grid .head{border-bottom:1px solid var(--line);font-weight:600}
.grid .head button{border:0;background:none;padding:0;font-weight:600;text-align:left}
.grid .view{height:360px;overflow-y:auto;position:relative;contain:strict}
.grid .row{position:absolute;left:0;right:0;cursor:pointer;border-bottom:1px solid var(--line)}
.grid .row[aria-selected=true]{background:var(--note-back)}
.grid .row>*{overflow:hidden;text-overflow:ellipsis;unicode-bidi:isolate}
.side{display:grid;grid-auto-flow:column;grid-auto-columns:minmax(17rem,1fr);gap:.7rem;overflow-x:auto;
padding-bottom:.4rem}
.side>.box{padding:.7rem}.side>.chosen{border-color:var(--mark);border-width:2px}
.turn{border-left:3px solid var(--line);padding:.15rem 0 .15rem .7rem;margin:.5rem 0}
.turn.assistant{border-color:var(--run0)}.turn.tool{border-color:var(--run4)}.turn.system{border-color:var(--run7)}
.odd{background:var(--cut);color:var(--bad);border-radius:.2rem;font-size:.85em;padding:0 .15em}
ins{background:var(--add);text-decoration:none}del{background:var(--cut)}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,18rem),1fr));gap:.7rem;margin:.6rem 0}
.differing{max-height:17rem;overflow-y:auto;padding-top:0}.differing th{position:sticky;top:0;background:var(--paper)}
main section:first-child h2:first-child{margin-top:.4rem}
#overview td,#overview th{white-space:nowrap;vertical-align:top}
#overview td:nth-child(3){white-space:normal;min-width:10rem}table.memory{margin-top:.8rem}
#evaluations .box{margin-bottom:.8rem}#evaluations h4{margin:.7rem 0 .2rem}
#sample-detail{margin-top:1rem}#sample-detail h4{margin:.6rem 0 .3rem}
@media(max-width:46rem){body{font-size:16px}.bar{padding:.45rem .7rem}.bar nav{gap:.65rem;font-size:.95rem}
main{padding:.7rem}.one .box.run{display:block}.asked{display:block}
.asked dt{margin-top:.4rem}.big{font-size:1.4rem}.box{padding:.8rem}input,select,button{min-height:2.2rem}
.hide-small,#overview small{display:none!important}
.grid{--columns:4.5rem 4.5rem minmax(6rem,1fr)}.side{grid-auto-columns:82vw}}
@media(scripting:enabled){#plots{min-height:100vh}#browser{min-height:480px}}
@media(prefers-reduced-motion:reduce){*{transition:none!important;animation:none!important}}
@media print{.bar,.controls{display:none}}
"""
