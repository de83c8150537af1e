//! Tells the service manager about the state of the gateway, with the protocol of `sd_notify(3)`.
//!
//! A failed notification is only logged. Child processes never inherit the variables of the protocol.

use std::{
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    sync::Arc,
    time::Duration,
};

use actix::ArbiterHandle;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use tokio::sync::oneshot;

use super::is_working;
use countersign_session::McpServer;
use countersign_transports::endpoint::McpEndpoint;

/// The maximum interval at which the status is checked for changes.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// The connection to the service manager, if one started this process and waits for notifications.
pub struct ServiceManager {
    socket: Option<UnixDatagram>,
    /// The interval of watchdog messages: half of the time after which the manager ends a silent process.
    watchdog_interval: Option<Duration>,
}

impl ServiceManager {
    /// Connects to the socket that the environment names.
    pub fn from_process() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let socket = variable("NOTIFY_SOCKET").and_then(|path| {
            let connected = connect(&path);
            connected.inspect_err(|error| tracing::warn!(?path, %error, "the service manager is not notified")).ok()
        });
        let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
        // The variables may be those of another process, which this one has inherited.
        let is_watched =
            variable("WATCHDOG_PID").is_none() || number("WATCHDOG_PID") == Some(std::process::id().into());
        let watchdog_timeout = number("WATCHDOG_USEC").filter(|timeout| socket.is_some() && is_watched && *timeout > 0);
        Self { socket, watchdog_interval: watchdog_timeout.map(|timeout| Duration::from_micros(timeout) / 2) }
    }

    /// Reports that the gateway serves, after its start or a reload.
    pub fn notify_ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// Reports that the gateway has begun to read its configuration again. [`Self::notify_ready`] reports the end.
    pub fn notify_reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.tv_sec * 1_000_000 + now.tv_nsec / 1_000));
    }

    /// Reports that the gateway has begun to end.
    pub fn notify_stopping(&self) {
        self.send("STOPPING=1\nSTATUS=Ending");
    }

    fn send(&self, message: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(message.as_bytes())
        {
            // The manager may be busy, and the next message may reach it.
            tracing::debug!(%error, "the service manager could not be notified");
        }
    }
}

/// Reports changes of the status, and that the gateway still works, until the process ends.
///
/// The watchdog gets no message once a core part has failed, or while this thread or one of `threads` hangs. A gateway
/// without its database or a server counts as working, because a restart would not help. While it shuts down, the
/// watchdog gets messages too, because the manager has a separate time limit for that.
pub async fn run(manager: Arc<ServiceManager>, endpoint: Arc<McpEndpoint>, threads: Vec<ArbiterHandle>) {
    if manager.socket.is_none() {
        return;
    }
    let interval = manager.watchdog_interval.map_or(STATUS_INTERVAL, |interval| interval.min(STATUS_INTERVAL));
    let mut reported = describe(&endpoint.server);
    loop {
        tokio::time::sleep(interval).await;
        wait_for_threads(&threads).await;
        let is_ending = endpoint.shutdown.is_cancelled();
        if manager.watchdog_interval.is_some() && (is_ending || is_working(&endpoint.server)) {
            manager.send("WATCHDOG=1");
        }
        let status = describe(&endpoint.server);
        if !is_ending && status != reported {
            manager.send(&format!("STATUS={status}"));
            reported = status;
        }
    }
}

/// Waits until each thread has run a task or has ended, which a thread that hangs never does.
async fn wait_for_threads(threads: &[ArbiterHandle]) {
    for thread in threads {
        let (sender, has_run) = oneshot::channel::<()>();
        thread.spawn(async move { drop(sender) });
        let _ = has_run.await;
    }
}

/// Describes the state of the gateway in one line, which `systemctl status` shows.
pub fn describe(server: &McpServer) -> String {
    let health = server.status.health();
    if health["ready"] == true {
        return format!("Serving {}", server.reviews.address.dashboard_url().trim_end_matches("#/"));
    }
    format!("Not ready: {}", unready_reasons(&health).join("; "))
}

/// Returns the checks of a response to `GET /health` that failed, in words.
pub fn unready_reasons(health: &Value) -> Vec<String> {
    let checks = &health["checks"];
    let store = checks["store"].as_str().filter(|store| *store != "ok").map(|store| format!("store {store}"));
    let missing = checks["upstreams"]["missing"].as_array().map(|missing| {
        let servers: Vec<&str> = missing.iter().filter_map(Value::as_str).collect();
        format!("no connection to {}", servers.join(", "))
    });
    store.into_iter().chain(missing).collect()
}

/// Connects to a socket by its path, or by its abstract name, which `@` begins.
fn connect(path: &OsStr) -> io::Result<UnixDatagram> {
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(path)?,
        _ => return Err(io::Error::other("NOTIFY_SOCKET is neither an absolute path nor an abstract name")),
    };
    let socket = UnixDatagram::unbound()?;
    // The gateway must not wait if the manager's queue is full.
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}
