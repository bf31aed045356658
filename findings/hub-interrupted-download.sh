#!/usr/bin/env bash
# huggingface_hub 2.4.0, seen 2026-11-29: an interrupted download begins again. The client deletes the unfinished file
# (file_download.py, _download_to_tmp_and_move), and requests the whole file the next time. 0.30.2 keeps it, and requests
# the rest. The server is a small one on loopback, with a file of 40 MB; the interruption is Ctrl-C (SIGINT) in its middle.
# Expected: kept after Ctrl-C: 2.4.0 nothing, 0.30.2 a part; second request: 2.4.0 from the start, 0.30.2 the rest
source "$(dirname "$0")/common.sh"
cat > "$work/try.py" <<'PY'
import os, re, signal, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

DATA, PIECE = bytes(40_000_000), 1_000_000
starts = []


class Handler(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, with_body):
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(found[1]) if found else 0
        self.send_response(206 if found else 200)
        headers = {"ETag": '"' + "e" * 64 + '"', "X-Repo-Commit": "c" * 40, "Content-Length": len(DATA) - start}
        if found:
            headers["Content-Range"] = f"bytes {start}-{len(DATA) - 1}/{len(DATA)}"
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        if with_body:
            starts.append(start)
            for at in range(start, len(DATA), PIECE):
                try:
                    self.wfile.write(DATA[at : at + PIECE])
                except OSError:
                    return
                time.sleep(0.1)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
home = Path(sys.argv[1])
environment = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(home)}
program = "from huggingface_hub import hf_hub_download; hf_hub_download('me/m', 'model.bin')"


def n_kept():
    return sum(file.stat().st_size for file in (home / "hub").rglob("*.incomplete"))


first = subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=subprocess.DEVNULL)
while n_kept() < 10_000_000:
    time.sleep(0.1)
first.send_signal(signal.SIGINT)
first.wait()
kept = n_kept()
subprocess.run([sys.executable, "-c", program], env=environment, check=True, stderr=subprocess.DEVNULL)
print("a part," if kept else "nothing,", "from the start" if starts[-1] == 0 else "the rest")
PY
seen=""
for version in 2.4.0 0.30.2; do
    install "huggingface_hub==$version"
    seen+="$version: $("$work/env/bin/python" "$work/try.py" "$work/home-$version"); "
done
expect "$seen" "2.4.0: nothing, from the start; 0.30.2: a part, the rest; "
