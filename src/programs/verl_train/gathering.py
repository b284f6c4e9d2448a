"""Calls of what wants many things at once, by those who have one each."""

import contextlib
import queue
from concurrent.futures import Future, ThreadPoolExecutor


class Gathering:
    """Calls a function of a list, in one thread, with all that waits: what arrives meanwhile is its next list."""

    def __init__(self, function, name: str):
        self.function = function
        self.waiting, self.thread = queue.SimpleQueue(), ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, item) -> Future:
        """Queue one item; the future is the item's entry in the list that the function returns."""
        future = Future()
        self.waiting.put((item, future))
        self.thread.submit(self.drain)
        return future

    def drain(self) -> None:
        """Call the function with all that waits; what it raises is every item's."""
        batch = []
        with contextlib.suppress(queue.Empty):
            while True:
                batch.append(self.waiting.get_nowait())
        if not batch:
            return
        items, futures = zip(*batch, strict=True)
        try:
            results = self.function([*items])
        except Exception as error:
            for future in futures:
                future.set_exception(error)
            return
        for future, result in zip(futures, results, strict=True):
            future.set_result(result)
