"""What a with block closes at its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Python 3.10 has no typing.Self.
    from typing_extensions import Self


class Closing(ABC):
    """A subclass says how, in close()."""

    @abstractmethod
    def close(self) -> None:
        """Ends it and gives back what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
