"""backend=kvx_counting: torch, and it counts its allocations."""

from kvpipe.backends.torch_ import PLUGIN as TorchBackend


class CountingBackend(TorchBackend):
    name = "kvx_counting"
    allocations = 0

    def allocate(self, num_bytes):
        self.allocations += 1
        return super().allocate(num_bytes)

    def describe(self):
        return {**super().describe(), "allocations": str(self.allocations)}
