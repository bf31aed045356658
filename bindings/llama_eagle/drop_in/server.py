"""llama-cpp-python's OpenAI-compatible server with `EagleLlama` behind it.

That server names its model class in two places: `llama_cpp.server.app.LlamaProxy`, which holds models, and
`llama_cpp.Llama` inside `LlamaProxy.load_llama_from_model_settings`. `create_app` puts ours in their place while it
runs. Messages reach `EagleLlama` as they are: the parent's types refuse valid ones, such as the role developer. What a
client got wrong is answered with status 400, where the parent has 500.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from llama_eagle.drop_in.llama import EagleLlama
from llama_eagle.drop_in.options import EAGLE_PARAMETERS, PARENT_PARAMETERS
from llama_eagle.errors import EnvironmentFailure, InputError, UsageError
from llama_eagle.files import invalid, read_json_or_yaml
from llama_eagle.native.limits import LONGEST
from llama_eagle.native.processor.threads import read_threads
from llama_eagle.serving.door import Door

try:
    import llama_cpp
    import llama_cpp.server.types as server_types

    Chat = server_types.CreateChatCompletionRequest
    Chat.model_fields["messages"].annotation = list[dict[str, Any]]
    Chat.model_rebuild(force=True)  # before the server's application, which reads it, is imported

    import llama_cpp.server.app as server_app
    from fastapi.exceptions import RequestValidationError
    from llama_cpp.llama_chat_format import LlamaChatCompletionHandlerNotFoundException, get_chat_completion_handler
    from llama_cpp.server.errors import RouteErrorHandler
    from llama_cpp.server.model import LlamaProxy
    from llama_cpp.server.settings import ModelSettings, ServerSettings
    from pydantic import BeforeValidator, Field, ValidationError
except ImportError as error:
    raise EnvironmentFailure(f"the server needs {error.name}: pip install llama-eagle[server]") from error


Threads = Annotated[int, BeforeValidator(read_threads)]


class EagleModelSettings(ModelSettings):
    """The parent's settings of one model, and the draft's."""

    n_threads: Threads = Field(default=0, description="CPU threads; 0 or auto: the default number.")
    n_threads_batch: Threads = Field(default=0, description="CPU threads for batches; 0 or auto: as n_threads.")
    draft: str | None = Field(default=None, description="The EAGLE-3 draft of this model, lookup, or none.")
    draft_path: str | None = Field(default=None, description="The draft's file, another name of draft.")
    n_draft: int | str = Field(default="auto", description="Tokens drafted in a round, or auto.")
    n_draft_max: int = Field(default=LONGEST, ge=1, description="The longest draft.")
    p_min: float = Field(default=0.0, ge=0, lt=1, description="A draft ends below this cumulative probability.")
    draft_sampling: str = Field(default="match", description="match or rejection.")
    exact: bool = Field(default=False, description="Verify bit by bit as plain decoding computes.")
    draft_gpu_layers: int | None = Field(default=None, description="The draft's layers on the GPU.")
    lookup: bool | None = Field(default=None, description="Look drafts up in the text first, where that pays.")
    drafter: Any = Field(default=None, exclude=True, description="Another source of drafts, from Python only.")
    draft_vocab: int | str | None = Field(default=None, description="Rows of an MTP draft's head, or all.")
    draft_n_ctx: int = Field(default=0, ge=0, description="Positions the draft sees, 0: as the target.")
    checkpoint_mib: int = Field(default=256, ge=0, description="Memory for checkpoints of a recurrent state.")
    checkpoint_every: int = Field(default=1024, ge=1, description="Tokens between them in a long prompt.")
    mmproj_path: str | None = Field(default=None, description="The model's vision encoder: messages may hold images.")
    image_folder: str | None = Field(default=None, description="Messages may name files below it.")
    image_urls: bool = Field(default=False, description="Messages may name http and https addresses.")
    parse_replies: bool = Field(default=True, description="Reasoning and tool calls apart from content.")
    logits_all: bool = Field(default=False, description="Whether to return logits; needed for logprobs.")


class EagleConfigFile(ServerSettings):
    """A configuration file: the server's settings and one entry per model."""

    models: list[EagleModelSettings] = Field(default=[], description="Model configs")


class EagleProxy(LlamaProxy):
    """Loads `EagleLlama` where the parent loads `Llama`."""

    @staticmethod
    def load_llama_from_model_settings(settings: ModelSettings) -> Any:
        with _replaced(llama_cpp, "Llama", _Factory(settings)):
            llm = LlamaProxy.load_llama_from_model_settings(settings)
        _require_chat_format(llm)
        return llm


def _require_chat_format(llm: Any) -> None:
    """A misspelt format would fail at each chat. Raises `UsageError`."""
    if llm.chat_handler is None and llm.chat_format not in llm._chat_handlers:
        try:
            get_chat_completion_handler(llm.chat_format)
        except LlamaChatCompletionHandlerNotFoundException as error:
            llm.close()
            raise UsageError(f"{error}. Choose one of those, or leave it out.") from None


class _Factory:
    """Called as the class would be, with everything the server passes."""

    def __init__(self, settings: ModelSettings) -> None:
        self._ours = {name: getattr(settings, name) for name in EAGLE_PARAMETERS if hasattr(settings, name)}

    def __call__(self, **given: Any) -> EagleLlama:
        return EagleLlama(**self._arguments(given))

    def from_pretrained(self, **given: Any) -> EagleLlama:
        return EagleLlama.from_pretrained(**self._arguments(given))

    def _arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """The server also passes `mul_mat_q`, which its own Llama ignores."""
        taken = {*PARENT_PARAMETERS, "model_path", "repo_id", "filename"}
        return {**{name: value for name, value in given.items() if name in taken}, **self._ours}


def create_app(server_settings: ServerSettings, models: list[EagleModelSettings], *, open_to_all: bool = False) -> Any:
    """The FastAPI application; the first model is loaded at once. Raises the errors of `EagleLlama`.

    open_to_all: without a key, any web page may use it too.
    """
    with _replaced(server_app, "LlamaProxy", EagleProxy):
        app = server_app.create_app(server_settings=server_settings, model_settings=list(models))
    if server_settings.api_key or not open_to_all:
        app.add_middleware(Door, key=server_settings.api_key, address=server_settings.host)
    return app


_other_errors = RouteErrorHandler.error_message_wrapper


def _error_answer(handler: RouteErrorHandler, error: Exception, body: Any = None) -> tuple[int, Any]:
    """Status and body of an error's answer. The parent answers what is not the client's fault."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        message = f"{'.'.join(str(part) for part in first['loc'][1:])}: {first['msg']}. Correct it."
    elif isinstance(error, (UsageError, InputError)):
        message = str(error)
    else:
        return _other_errors(handler, error, body)
    return 400, {"message": message, "type": "invalid_request_error", "param": None, "code": None}


setattr(RouteErrorHandler, "error_message_wrapper", _error_answer)  # noqa: B010 (mypy refuses an assignment)


def read_config(path: Path) -> EagleConfigFile:
    """A JSON or YAML file with the server's settings and `models`. Raises `InputError` for what it cannot be."""
    data = read_json_or_yaml(path)
    try:
        config = EagleConfigFile.model_validate(data)
    except ValidationError as error:
        raise InputError(invalid(path, error.errors())) from None
    if not config.models:
        raise InputError(f"{path}: it names no models. Give at least one entry in `models`.")
    return config


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
