"""The pictures of docs/report.md, taken in Chromium: python -m tests.report.screenshots docs/assets"""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.report.browser import Page, started

RUN = ["run", "--models", "4", "--recipe", "plain", "--engine", "stacked", "--device", "cpu"]
PARTS = {"report": ("header.top", "#curves"), "report-weights": ("#models", "#weights")}  # from the one to the other

BOX = """
const [a, b] = [...arguments].map((selector) => document.querySelector(selector).getBoundingClientRect());
return { x: 0, y: Math.max(0, a.top + scrollY - 12), width: innerWidth, height: b.bottom - a.top + 24, scale: 0.8 };
"""


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "digits-fedfew-0"
        for words in ([*RUN, "--folder", str(run)], ["report", str(run)]):
            subprocess.run([sys.executable, "-m", "fedfew", *words], check=True)
        driver = started()
        try:
            page = Page(driver)
            page.resize(1180)
            page.open(run / "report.html")
            page.wait("return document.querySelector('#w-map canvas').width > 300")
            page.do(
                "document.querySelector('#round').value = 34; document.querySelector('#round').dispatchEvent(new Event('input'))"
            )
            for name, (first, last) in PARTS.items():
                box = page.do(BOX, first, last)
                shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": box})
                (folder / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
        finally:
            driver.quit()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
