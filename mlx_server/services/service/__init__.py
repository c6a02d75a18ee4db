"""The daemon as a service of the operating system: launchd on macOS, systemd on Linux."""
