from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import pytest
from fastapi import FastAPI

from mlx_server.api.serving import LoadedModel, ServingState
from mlx_server.chat.defaults import SamplingDefaults
from mlx_server.chat.tokenizer import ChatTokenizer
from mlx_server.core.settings import Settings
from mlx_server.daemon.app import create_app
from tests.fakes import small_tokenizer
from tests.fakes.scripted_engine import ScriptedEngine


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_tokenizer.model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def tokenizer() -> ChatTokenizer:
    return small_tokenizer.shared()


@pytest.fixture
def engine(tokenizer: ChatTokenizer) -> ScriptedEngine:
    """Says 'Hello there, 😀 world.' to everything."""
    answer = tokenizer.encode_text("Hello there, 😀 world.")
    return ScriptedEngine(reply=lambda request: answer, vocab_size=602, started=True)


@pytest.fixture
def serving(engine: ScriptedEngine, tokenizer: ChatTokenizer) -> ServingState:
    state = ServingState(Settings(model="org/small", max_body_bytes=64 * 1024))
    state.model = LoadedModel(engine, engine.info, tokenizer, SamplingDefaults())
    return state


@pytest.fixture
def app(serving: ServingState) -> FastAPI:
    return create_app(serving)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
