#!/usr/bin/env python3
"""Looks at the page of sparsellm-serve in a browser.

    page_check.py SPARSELLM_SERVE [--screenshots FOLDER]

starts the program with the tiny model of the tests, and a stand-in that has the same page but
answers with what a model must not be able to do. It needs Playwright for Python and Chromium: the
one that SPARSELLM_CHROMIUM names, one on the PATH, or Playwright's own. Without them it exits
with 77.
"""

import argparse
import contextlib
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

try:
    from playwright.sync_api import Error as PlaywrightError
    from playwright.sync_api import sync_playwright
except ImportError:
    print("skipped: there is no Playwright")
    sys.exit(77)

MODEL = pathlib.Path(__file__).resolve().parents[2] / "data/models/fable-llama-relu-8m"
SECONDS = 60
LONG = 64 * 480
HOSTILE = (
    "é<script>window.ran = 1</script><img src=x onerror='window.ran = 2'>"
    "<svg onload=window.ran=3></svg>\r\n</pre>&lt;b&gt; 世界 🙂"
)


def require(holds, what):
    if not holds:
        raise AssertionError(what)


@contextlib.contextmanager
def served(program, *flags):
    """The address of a server that is ready."""
    command = [program, "-m", MODEL, "--device", "cpu", "--port", "0", *flags]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        address = None
        said = []
        for line in server.stderr:
            said.append(line)
            found = re.search(r"is served at (http://\S+)", line)
            if found:
                address = found.group(1)
                break
        require(address, f"the server did not start: {''.join(said)}")
        threading.Thread(target=server.stderr.read, daemon=True).start()
        yield address
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            raise


def pieces_of_stream(text):
    """A stream of events as no server of ours writes it: any line ends, comments, every cut."""
    events = b": a comment\r\n\r\nevent: x\nid: 1\n\n"
    for character in text:
        choice = {"index": 0, "text": character, "finish_reason": None}
        # A line break between any two fields of JSON is two lines of data.
        data = json.dumps({"choices": [choice], "usage": None}, ensure_ascii=False)
        first, second = data.split(", ", 1)
        events += f"data: {first},\r\ndata:{second}\r\n\r\n".encode()
    usage = {"prompt_tokens": 1, "completion_tokens": len(text) + 1}
    events += b'data: {"choices": [], "usage": ' + json.dumps(usage).encode() + b"}\n\n"
    events += b"data: [DONE]\r\r"
    return [events[i : i + 1] for i in range(len(events))]


class StandIn(http.server.BaseHTTPRequestHandler):
    """The page of a real server, with its headers, above other answers."""

    page_of = ""  # address of the real one
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, headers, body):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/":
            with urllib.request.urlopen(StandIn.page_of + "/") as page:
                kept = [
                    item
                    for item in page.getheaders()
                    if item[0].lower() not in ("content-length", "date", "server", "connection")
                ]
                self.answer(200, kept, page.read())
        elif self.path == "/layers":
            layer = {"block": HOSTILE, "name": HOSTILE, "out": HOSTILE, "in": HOSTILE}
            layer |= {"density": None, "format": HOSTILE, "bytes": 1}
            times = {"tokens": HOSTILE, "us_sparse": HOSTILE, "us_dense": 2.0, "speedup": HOSTILE}
            timed = layer | {"times_of_block": 1, "times": [times]}
            answer = {"model": HOSTILE, "ranks": 2, "layers": [layer, timed]}
            self.answer(200, [("Content-Type", "application/json")], json.dumps(answer).encode())
        else:
            self.answer(404, [], b"")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["prompt"] == "error":
            error = json.dumps({"error": {"message": HOSTILE}}).encode()
            self.answer(400, [("Content-Type", "application/json")], error)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        pieces = pieces_of_stream(HOSTILE)
        if body["prompt"] == "cut":
            pieces = pieces[:-10]
        for piece in pieces:
            self.wfile.write(b"1\r\n" + piece + b"\r\n")
            if piece == b"\r" or piece >= b"\x80":
                time.sleep(0.003)  # so that the browser reads it by itself
        self.wfile.write(b"0\r\n\r\n")


@contextlib.contextmanager
def stand_in(page_of):
    StandIn.page_of = page_of
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


class Tab:
    """A page in a context of its own, and all that it complains of."""

    def __init__(self, browser, address, **context):
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(SECONDS * 1000)
        self.complaints = []
        # An answer of the API that is an error is one that the page is to show.
        self.page.on(
            "console",
            lambda message: message.type in ("error", "warning")
            and not message.text.startswith("Failed to load resource: the server responded")
            and self.complaints.append(message.text),
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.add_init_script(
            "window.violations = [];"
            "document.addEventListener('securitypolicyviolation',"
            " (event) => window.violations.push(event.violatedDirective + ' ' + event.blockedURI));"
        )
        self.page.goto(address)

    def text(self, name):
        return self.page.locator(f"#{name}").text_content()

    def fill(self, **values):
        for name, value in values.items():
            self.page.fill(f"#{name}", value)

    def wait_for(self, name, pattern):
        # Not by wait_for_function(): what it has the page evaluate, the page's policy forbids.
        end = time.monotonic() + SECONDS
        while not re.search(pattern, self.text(name)):
            require(time.monotonic() < end, f"{name} is {self.text(name)!r}, and not {pattern}")
            time.sleep(0.005)

    def run(self, finish, **values):
        self.fill(**values)
        self.page.click("#run")
        self.wait_for("finish", f"^{finish}$")
        self.page.wait_for_selector("#run:enabled")

    def close(self):
        violations = self.page.evaluate("window.violations")
        self.context.close()
        require(not violations, f"violations of the policy: {violations}")
        require(not self.complaints, f"complaints: {self.complaints}")


def check_completion(tab):
    tab.run("length", prompt="Once upon a time", max_tokens="40", seed="1", temperature="0.5")
    require(len(tab.text("out")) > 40, f"a short text: {tab.text('out')!r}")
    require(tab.text("tokens") == "40", f"{tab.text('tokens')} tokens")
    require(re.fullmatch(r"\d+ ms", tab.text("first")), "no time of the first token")
    require(tab.page.is_hidden("#error"), "an error is shown")
    first = tab.text("out")
    tab.run("length")
    require(tab.text("out") == first, "a seed does not give the same text")
    tab.run("stop", stop_texts=first[5:12])
    require(first[5:12] not in tab.text("out"), "it does not stop at a text")
    tab.fill(stop_texts="")


@contextlib.contextmanager
def long_completions(tab):
    """Completions of LONG tokens, which no machine has at once: 64 at a time, of 480 each."""

    def lengthened(route):
        body = json.loads(route.request.post_data) | {"ignore_eos": True, "n": 64}
        route.continue_(post_data=json.dumps(body))

    tab.fill(prompt="Once", max_tokens="480", seed="3", temperature="1.5")
    tab.page.route("**/v1/completions", lengthened)
    yield
    tab.page.unroute("**/v1/completions")


def check_stopped(tab):
    tab.wait_for("finish", "^stopped$")
    tokens = int(tab.text("tokens"))
    require(0 < tokens < LONG, f"{tokens} tokens in spite of Stop")
    require(tab.page.is_hidden("#error"), "Stop shows an error")
    time.sleep(0.5)
    require(int(tab.text("tokens")) == tokens, "tokens come after Stop")


def check_counters_move(tab):
    """While tokens come; and then Stop ends it."""
    with long_completions(tab):
        tab.page.click("#run")
        tab.wait_for("finish", "^running$")
        require(tab.page.is_disabled("#run") and tab.page.is_enabled("#stop"), "wrong buttons")
        tab.wait_for("tokens", f"^(?!{tab.text('tokens')}$)")
        tab.wait_for("rate", r"^\d+\.\d$")
        tab.page.click("#stop")
        check_stopped(tab)


def check_ended_at_server(address):
    """The server has noticed that nobody reads."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with urllib.request.urlopen(address + "/metrics") as answer:
            if re.search(r"^vllm:num_requests_running\S* 0(\.0)?$", answer.read().decode(), re.M):
                return
        time.sleep(0.1)
    raise AssertionError("the request runs on at the server")


def check_errors(tab):
    tab.run("error", prompt="Once", temperature="-1")
    error = tab.text("error")
    require(error.startswith("Error: 400: ") and "temperature" in error, f"the error {error!r}")
    require("\n" not in error, "an error of more than one line")
    tab.run("error", prompt="", temperature="")
    require("prompt is empty" in tab.text("error"), f"the error {tab.text('error')!r}")
    tab.run("length", prompt="Once", max_tokens="2")
    require(tab.page.is_hidden("#error"), "the error stays")


def check_keyboard(tab):
    """Everything without a mouse."""
    tab.page.focus("#prompt")
    tab.page.keyboard.press("Control+A")
    tab.page.keyboard.type("The fox")
    tab.page.keyboard.press("Control+Enter")
    tab.wait_for("finish", "^length$")
    tab.page.focus("#max_tokens")
    tab.page.keyboard.press("Control+A")
    tab.page.keyboard.type("3")
    tab.page.keyboard.press("Enter")
    tab.wait_for("tokens", "^3$")
    reached = []
    tab.page.focus("#prompt")
    for _ in range(20):
        reached.append(tab.page.evaluate("document.activeElement.id"))
        tab.page.keyboard.press("Tab")
    for name in ("max_tokens", "stop_texts", "key", "run", "out", "reload"):
        require(name in reached, f"the keyboard does not reach {name}: {reached}")
    with long_completions(tab):
        tab.page.focus("#run")
        for key in ("Enter", "Escape"):  # on Stop and anywhere
            tab.page.keyboard.press("Enter")
            tab.wait_for("finish", "^running$")
            focused = tab.page.evaluate("document.activeElement.id")
            require(focused == "stop", f"the focus is at {focused!r}, not at Stop")
            tab.page.keyboard.press(key)
            check_stopped(tab)
            focused = tab.page.evaluate("document.activeElement.id")
            require(focused == "run", f"the focus is at {focused!r}, not at Run")


def check_layers(tab, timed):
    tab.page.wait_for_selector("#layers:not([hidden])")
    rows = tab.page.locator("#layers tbody tr")
    require(rows.count() == 32, f"{rows.count()} layers")
    cells = rows.nth(0).locator("td").all_text_contents()
    require(cells[:2] == ["0", "qkv"], f"the cells {cells}")
    require(len(cells) == (10 if timed else 7), f"the cells {cells}")
    require("fable-llama-relu-8m" in tab.text("model"), "no name")
    if timed:
        require(float(cells[7]) > 0 and cells[9].endswith("×"), f"the cells {cells}")
        tab.page.select_option("#layer_tokens", "3")
        others = rows.nth(0).locator("td").all_text_contents()
        require(others[7:] != cells[7:], "the times are the same for other tokens")


def check_small_screen(tab):
    wide = tab.page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    require(wide <= 0, f"the page is {wide} pixels too wide for a phone")


def check_hostile(tab):
    tab.run("ended", prompt="hostile")  # the stand-in gives no reason
    shown = tab.text("out")
    require(shown == HOSTILE, f"the text {shown!r}")
    require(tab.text("tokens") == str(len(HOSTILE) + 1), f"{tab.text('tokens')} tokens")
    require(tab.page.is_hidden("#error"), "an error is shown")
    tab.run("error", prompt="error")
    require("<script>" in tab.text("error"), "the error is not what was said")
    tab.run("error", prompt="cut")
    require("too soon" in tab.text("error"), "a stream that is cut is no error")
    tab.page.wait_for_selector("#layers:not([hidden])")
    require("<script>" in tab.text("layers"), "the layers are not what was said")
    require(tab.page.evaluate("window.ran === undefined"), "text of the model has run")
    found = tab.page.evaluate("document.querySelectorAll('img, svg, iframe, script').length")
    require(found == 1, f"{found} elements, but there is one script")


def check_key(tab, address):
    tab.wait_for("layers_note", "^401: ")
    tab.run("error", prompt="Once", max_tokens="2")
    require("401" in tab.text("error"), f"the error {tab.text('error')!r}")
    tab.fill(key="sesame")
    tab.page.press("#key", "Tab")
    tab.page.wait_for_selector("#layers:not([hidden])")
    tab.run("length")
    stored = tab.page.evaluate(
        "localStorage.length + sessionStorage.length + document.cookie.length"
    )
    require(stored == 0, "something is stored")
    require(tab.page.url == address + "/", f"the address is {tab.page.url}")
    tab.page.reload()
    require(tab.page.input_value("#key") == "", "the key outlives the page")


def write_report(bench, folder):
    """Times of the model's layers; nothing without the program."""
    if not bench.exists():
        return None
    report = folder / "report.json"
    command = [bench, "layers", "-m", MODEL, "--device", "cpu", "--tokens", "1,3"]
    with open(report, "w", encoding="utf-8") as out:
        subprocess.run(
            [*command, "--repeat", "1", "--quiet", "--output", "json"], stdout=out, check=True
        )
    return report


def start_browser(playwright):
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("SPARSELLM_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    # Its sandbox does not start for root.
    return playwright.chromium.launch(executable_path=path, chromium_sandbox=os.geteuid() != 0)


def check(browser, program, screenshots):
    def done(what, tab, picture=None):
        if screenshots and picture:
            tab.page.screenshot(path=screenshots / f"{picture}.png", full_page=True)
        tab.close()
        print(f"ok: {what}")

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        report = write_report(pathlib.Path(program).parent / "sparsellm-bench", folder)
        flags = ["--layers-report", report] if report else []
        with served(program, *flags) as address:
            tab = Tab(browser, address)
            check_completion(tab)
            done("a completion", tab, "light")
            tab = Tab(browser, address)
            check_counters_move(tab)
            check_ended_at_server(address)
            done("counters and Stop", tab)
            tab = Tab(browser, address)
            check_errors(tab)
            done("errors", tab)
            tab = Tab(browser, address)
            check_keyboard(tab)
            done("the keyboard", tab)
            tab = Tab(browser, address)
            check_layers(tab, report is not None)
            done("layers with times" if report else "layers", tab)
            small = {"width": 360, "height": 720}
            tab = Tab(browser, address, viewport=small, color_scheme="dark", has_touch=True)
            check_layers(tab, report is not None)
            check_completion(tab)
            check_small_screen(tab)
            dark = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
            require(dark == "rgb(20, 23, 27)", f"the background is {dark} in the dark")
            done("a small screen in the dark", tab, "dark")
            with stand_in(address) as other:
                tab = Tab(browser, other, viewport=small)
                check_hostile(tab)
                done("hostile texts", tab, "hostile")
        keys = folder / "keys"
        keys.write_text("sesame\n", encoding="utf-8")
        with served(program, "--api-key-file", keys) as address:
            tab = Tab(browser, address)
            check_key(tab, address)
            done("a key", tab)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="sparsellm-serve")
    parser.add_argument("--screenshots", type=pathlib.Path, help="folder for pictures of the page")
    args = parser.parse_args()
    with sync_playwright() as playwright:
        try:
            browser = start_browser(playwright)
        except PlaywrightError as error:
            print(f"skipped: there is no Chromium that starts: {error}")
            return 77
        check(browser, args.program, args.screenshots)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
