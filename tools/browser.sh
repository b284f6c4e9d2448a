#!/bin/sh
# Install Chromium and its driver, in which tests/test_report.py opens pages, where that is easy: as root on Debian or
# Ubuntu. Elsewhere this says so and does nothing: those tests are then skipped, and the list of skipped tests says why.
#
#     sh tools/browser.sh
set -u
if command -v chromedriver >/dev/null && { command -v chromium || command -v chromium-browser; } >/dev/null; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "browser: no chromium and chromedriver, and no apt-get as root to install them: their tests are skipped"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
install() {
    apt-get install -y -qq --no-install-recommends chromium chromium-driver >"$log" 2>&1
}
install || { apt-get update -qq >"$log" 2>&1 && install; } ||
    echo "browser: $(tail -n 1 "$log"); the tests that need it are skipped"
rm -f "$log"
exit 0
