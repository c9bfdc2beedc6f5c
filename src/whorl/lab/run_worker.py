"""A process that makes runs for a sweep: jobs come as lines of JSON on stdin, what happens goes out as lines on stdout.

It ends when stdin does, also in the middle of a run: a sweep that is killed takes its workers with it, and what they
had saved is where the next one goes on. An interrupt ends it after the update it is at, which is saved.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from typing import Any


def main() -> None:
    """Serves jobs until stdin ends."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # whatever else prints must not get between the lines
    jobs: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    threads = int(sys.argv[1])

    import torch

    torch.set_num_threads(threads)
    from whorl.lab.run_many import attempt
    from whorl.lab.settings import RunConfig
    from whorl.plugins import load_plugin

    def say(event: dict[str, Any]) -> None:
        out.write(json.dumps(event) + "\n")

    def tell(event: dict[str, Any]) -> None:
        say({"kind": "event", "event": event})

    while True:
        try:
            job = jobs.get()
            for file in job["plugins"]:
                load_plugin(file)
            config = RunConfig.from_dict(job["config"])
            say(attempt(config, job["folder"], tell=tell, **job["options"]))
        except KeyboardInterrupt:
            return
        except BaseException:
            say({"kind": "failed", "message": traceback.format_exc()})
            raise


def _listen(jobs: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    os._exit(1)


if __name__ == "__main__":
    main()
