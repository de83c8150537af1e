//! Opens pages in the desktop's browser.

use std::process::{Command, Stdio};

/// Returns `true` if this session seems to have a browser.
pub fn is_available() -> bool {
    ["DISPLAY", "WAYLAND_DISPLAY", "BROWSER"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// Opens the link, if there is a browser. While `xdg-open` runs, other users of this machine may see the link among its
/// arguments.
pub fn open(link: &str) -> bool {
    if !is_available() {
        return false;
    }
    let started =
        Command::new("xdg-open").arg(link).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    // Browsers that stay in the foreground are not waited for.
    started.is_ok()
}
