"""Says nothing, and does not end."""

import time

while True:
    time.sleep(60)
