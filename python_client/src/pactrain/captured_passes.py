"""Notices torch.autograd.grad(): its gradients go to the script, which steps by them
where neither an optimizer nor an exchange tells of it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.utils.hooks import RemovableHandle


class CapturedPasses:
    """Watches one parameter. Not thread-safe: called on the thread of the pass."""

    def __init__(self, tell: Callable[[], None]) -> None:
        """`tell` is called in each pass that follows a captured one."""
        self._tell = tell
        self._captured = False  # The last gradient did not come to the parameter.
        self._handles: list[RemovableHandle] = []

    def watch(self, parameter: Tensor) -> None:
        """This one instead, until close()."""
        self.close()
        self._handles = [
            parameter.register_hook(self._computed),  # type: ignore[no-untyped-call]
            parameter.register_post_accumulate_grad_hook(self._came),  # type: ignore[no-untyped-call]
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._captured = False

    def _computed(self, gradient: Tensor) -> None:
        captured, self._captured = self._captured, True
        if captured:
            self._tell()

    def _came(self, parameter: Tensor) -> None:
        self._captured = False
