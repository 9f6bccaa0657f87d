"""A real browser without a window, for the tests of pages."""

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --hide-scrollbars"
)


def find():
    """The browser and its driver; without them the test is skipped."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("needs chromium and chromedriver (Debian packages chromium, chromium-driver)")
    return browser, driver


@contextmanager
def chromium():
    """A driver with a fresh profile, closed at the end."""
    webdriver = pytest.importorskip("selenium.webdriver")
    browser, driver = find()
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in [*FLAGS.split(), f"--user-data-dir={profile}"]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        try:
            yield opened
        finally:
            opened.quit()


def show(opened, path, width=1440, theme="light", media=""):
    """Open a file at a width in pixels, in a colour scheme, on screen or paper; returns what the console said."""
    opened.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    scheme = {"name": "prefers-color-scheme", "value": theme}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})
    opened.get(Path(path).resolve().as_uri())
    return opened.get_log("browser")
