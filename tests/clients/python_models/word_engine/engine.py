"""An engine for words on an event loop, which responds to a prompt with its own words
in turn."""

import asyncio
import threading


class Engine:
    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def start(self, coroutine):
        """Runs a coroutine in addition to those that are already running."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    async def generate(self, prompt, count):
        """Produces one word after the other; it never ends if `count` is 0."""
        words = prompt.split()
        number = 0
        while number < count or count == 0:
            await asyncio.sleep(0.001)  # sleep: the time that a word takes
            word = words[number % len(words)]
            if word == "fail":
                raise RuntimeError("the engine failed")
            number += 1
            yield word, number == count

    def stop(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
