from collections.abc import Callable
from pathlib import Path

import pytest

from maka.journal.store import FileStore, Store
from support.memory_store import MemoryStore
from support.store_contract import StoreContract


class TestFileStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return FileStore(tmp_path / "root")

    @pytest.fixture
    def reopened(self, tmp_path: Path) -> Callable[[], Store]:
        return lambda: FileStore(tmp_path / "root")


class TestFileStoreWithoutSnapshots(TestFileStore):
    @pytest.fixture(autouse=True)
    def no_snapshots(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("maka.journal.snapshot.write", lambda *_: None)


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()
