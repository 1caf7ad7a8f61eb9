"""A real Chromium for the tests. Where there is none they are left out, unless FEDFEW_NEEDS_BROWSER says that there must be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NEEDED = "FEDFEW_NEEDS_BROWSER"


def started() -> Any:
    """A headless browser that keeps its console."""
    chromium, driver = shutil.which("chromium") or shutil.which("chromium-browser"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        absent = f"there is no {'chromium' if chromium is None else 'chromedriver'} here (Debian: chromium and chromium-driver)"
        if os.environ.get(NEEDED):
            pytest.fail(f"{absent}, but {NEEDED} is set")
        pytest.skip(absent)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    driver = started()
    yield driver
    driver.quit()


class Page:
    """An open page, its console watched."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def resize(self, width: int, theme: str = "light") -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = {"media": "", "features": [{"name": "prefers-color-scheme", "value": theme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def open(self, address: str | Path) -> None:
        self.driver.get_log("browser")
        self.driver.get(address.as_uri() if isinstance(address, Path) else address)
        self.wait("return document.body.dataset.ready")

    def do(self, script: str, *values: Any) -> Any:
        return self.driver.execute_script(script, *values)

    def wait(self, script: str, *values: Any, seconds: float = 300) -> Any:
        """Until the script says something true."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, seconds, 0.05).until(lambda driver: driver.execute_script(script, *values), script)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return str(self.do("return document.querySelector(arguments[0]).textContent", selector)).replace("\u00a0", " ")

    def console(self) -> list[str]:
        """What the browser complained about since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def pixels(self, selector: str) -> str:
        """What a canvas shows."""
        return str(self.do("return document.querySelector(arguments[0]).toDataURL()", selector))
