"""Models in the form of ollama's lists."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.ollama.bodies import Body

LATEST = ":latest"  # clients miss a name that is listed without its tag
NEVER = "2318-01-01T00:00:00Z"  # until when the model stays loaded
ROUNDED = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


def full_name(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def require_model(models: list[Body], name: str) -> Body:
    """Return the model of a name, with or without its tag. Raises `Refusal`."""
    for model in models:
        names = {str(each).lower() for each in (model["id"], *model.get("aliases", ()))}
        if full_name(name.lower()) in {full_name(each) for each in names}:
            return model
    known = ", ".join(full_name(model["id"]) for model in models)
    raise Refusal(404, f"model {name!r} not found: this server has {known}")


def listed(model: Body, path: str, family: str) -> Body:
    """Return the entry of a model in a list. path: its file. Models of one file have one digest."""
    file, meta = Path(path), model.get("meta") or {}
    changed = file.stat().st_mtime if file.is_file() else model.get("created", 0)
    name = full_name(model["id"])
    return {
        "name": name, "model": name, "modified_at": datetime.fromtimestamp(changed, timezone.utc).isoformat(),
        "size": int(meta.get("size") or 0), "digest": hashlib.sha256(f"{path} {changed}".encode()).hexdigest(),
        "details": details(model, family),
    }  # fmt: skip


def details(model: Body, family: str) -> Body:
    meta = model.get("meta") or {}
    return {
        "parent_model": "", "format": "gguf", "family": family, "families": [family] if family else [],
        "parameter_size": _rounded(meta.get("n_params") or 0), "quantization_level": meta.get("ftype") or "",
    }  # fmt: skip


def shown(model: Body, properties: Body, family: str, *, has_vectors: bool) -> Body:
    """Return the answer of /api/show. properties: those of llama-server. has_vectors: it answers with vectors alone."""
    meta, template = model.get("meta") or {}, properties.get("chat_template") or ""
    info: dict[str, Any] = {
        "general.architecture": family,
        "general.parameter_count": meta.get("n_params"),
        f"{family}.context_length": meta.get("n_ctx") or meta.get("n_ctx_train"),
        f"{family}.embedding_length": meta.get("n_embd"),
    }
    can = {
        "embedding": has_vectors, "completion": not has_vectors, "tools": "tools" in template,
        "thinking": "enable_thinking" in template or "reasoning" in template,
        "vision": bool((properties.get("modalities") or {}).get("vision")),
    }  # fmt: skip
    return {
        "modelfile": f"FROM {full_name(model['id'])}\n", "parameters": "", "template": template, "license": "",
        "details": details(model, family), "capabilities": [name for name, is_able in can.items() if is_able],
        "model_info": {key: value for key, value in info.items() if value is not None},
        "modified_at": datetime.fromtimestamp(model.get("created", 0), timezone.utc).isoformat(),
    }  # fmt: skip


def _rounded(n: float) -> str:
    for size, unit in ROUNDED:
        if n >= size:
            return f"{n / size:.1f}{unit}"
    return str(int(n))
