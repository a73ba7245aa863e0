"""Headless Chromium, driven by the DevTools protocol (https://chromedevtools.github.io/devtools-protocol/)."""

import asyncio
import base64
import contextlib
import json
import pathlib
import shutil
import subprocess

import aiohttp

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
PATIENCE = 60.0  # seconds


@contextlib.asynccontextmanager
async def open_page(url, folder, width=1000, height=800):
    """Yields a `Page` that shows a URL; `folder` is the browser's own."""
    folder = pathlib.Path(folder)
    command = [PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
               "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]  # fmt: skip
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = await _soon(lambda: (folder / "DevToolsActivePort").read_text().split()[0])
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                (target,) = [target for target in await response.json() if target["type"] == "page"]
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                await page.size(width, height)
                await page.call("Page.enable")
                await page.call("Page.navigate", url=url)
                yield page
    finally:
        browser.kill()
        browser.wait()


async def _soon(look):
    """Returns what `look` returns as soon as it is something and nothing is missing."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        with contextlib.suppress(FileNotFoundError, LookupError):
            found = look()
            found = await found if asyncio.iscoroutine(found) else found
            if found:
                return found
        assert asyncio.get_running_loop().time() < deadline, "waited in vain"
        await asyncio.sleep(0.05)


class Page:
    """A page of the browser. Expressions are JavaScript."""

    def __init__(self, socket):
        self._socket, self._calls = socket, 0

    async def call(self, method, **parameters):
        """Calls a method of the protocol and returns its result."""
        self._calls += 1
        await self._socket.send_json({"id": self._calls, "method": method, "params": parameters})
        while True:
            answer = json.loads((await asyncio.wait_for(self._socket.receive(), PATIENCE)).data)
            if answer.get("id") == self._calls:
                if "error" in answer:  # the page is being left
                    raise LookupError(answer["error"])
                return answer["result"]

    async def look(self, expression):
        """Returns the value of an expression."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise LookupError(found["exceptionDetails"])
        return found["result"].get("value")

    async def until(self, expression):
        """Waits until an expression is true, and returns its value."""
        try:
            return await _soon(lambda: self.look(expression))
        except AssertionError:
            seen = await self.look("location.href + '\\n' + document.body.innerText")
            raise AssertionError(f"waited in vain for {expression}; there is {seen}") from None

    async def text(self, selector):
        """Returns the texts of elements."""
        return await self.look(f"[...document.querySelectorAll({selector!r})].map((found) => found.innerText)")

    async def type(self, selector, text):
        """Replaces what an input holds, as an input method does, and presses the Enter key."""
        await self.look(f"document.querySelector({selector!r}).select()")
        await self.call("Input.insertText", text=text)
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13,
                            text="\r")  # fmt: skip

    async def click(self, selector):
        """Clicks into the middle of the first such element."""
        place = await self.look(
            f"(() => {{ const found = document.querySelector({selector!r}); found.scrollIntoView({{block: 'center'}});"
            "const box = found.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    async def choose_file(self, selector, path):
        """Chooses a file in an input of files."""
        document = await self.call("DOM.getDocument")
        found = await self.call("DOM.querySelector", nodeId=document["root"]["nodeId"], selector=selector)
        await self.call("DOM.setFileInputFiles", nodeId=found["nodeId"], files=[str(path)])

    async def back(self):
        """Goes back."""
        await self.look("history.back()")

    async def size(self, width, height):
        """Sets the size of the window in pixels of CSS."""
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                        mobile=width < 500)  # fmt: skip

    async def screenshot(self):
        """Returns a PNG of what is seen."""
        return base64.b64decode((await self.call("Page.captureScreenshot"))["data"])
