"""Completions from OpenAI-compatible servers, one per request, with retries if a server is busy."""

import http.client
import json
import os
import time
import urllib.error
import urllib.request

from parts.foundation.messages import UserError, say_once


def is_server(source: str) -> bool:
    """Whether a model is behind HTTP."""
    return source.startswith(("http://", "https://"))


def server_json(url: str, body: dict | None, hint: str, tries=5, timeout: float = 600, wait: float = 0.5) -> dict:
    """The JSON answer to a GET (no body) or a POST; retried if the server is busy or the connection is lost.

    Raises:
        UserError: no try got an answer; the message ends with `hint`.
    """
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    for attempt in range(tries):
        time.sleep(min(30.0, wait * 2 ** (attempt - 1)) if attempt else 0)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            problem = f"{error} {error.read()[:200]!r}"
            if error.code not in (408, 425, 429) and error.code < 500:
                break
        except (OSError, ValueError, http.client.HTTPException) as error:
            problem = str(error)
    raise UserError(f"got {problem} from {url}; expected an answer; {hint}")


def server_text(base_url: str, prompt: str | list[dict], body: dict, hint: str) -> tuple[str, str | None, int | None]:
    """One completion: messages go to /chat/completions, text to /completions.

    Args:
        body: model, max_tokens, temperature and further fields of the request.

    Returns:
        (text, the server's finish_reason, its count of tokens or None).
    """
    chat = isinstance(prompt, list)
    if chat and prompt[-1]["role"] == "assistant":  # have vLLM and SGLang continue that message
        body = body | {"add_generation_prompt": False, "continue_final_message": True}
    url = base_url.rstrip("/") + ("/chat/completions" if chat else "/completions")
    answer = server_json(url, body | {"messages" if chat else "prompt": prompt}, hint)
    try:
        choice = answer["choices"][0]
        said = choice["message"] if chat else {"content": choice["text"]}
        text = said["content"] or ""
        text = text if isinstance(text, str) else "".join(part["text"] for part in text)
    except (KeyError, IndexError, TypeError):
        raise UserError(f"got {str(answer)[:200]} from {url}; expected choices with text; {hint}") from None
    if said.get("reasoning_content") or said.get("reasoning"):
        say_once(f"warning: {base_url} returns its thinking apart from its text; try it without a reasoning parser")
    return text, choice.get("finish_reason"), (answer.get("usage") or {}).get("completion_tokens")
