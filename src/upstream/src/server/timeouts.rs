//! Time limits of calls by tool, and the detection of a server that stopped answering on a shared stream.
//!
//! A child process that hangs does not exit, and every caller that shares it would have to wait for a timeout. After several
//! consecutive timeouts the server is probed. Without an answer, the connection is abandoned, its calls fail, and a new one is
//! opened.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use globset::{Glob, GlobMatcher};

use super::{Upstream, connection::UpstreamConnection, own_requests::OwnRequestError};
use crate::link::{LinkError, LinkKind};
use countersign_config::UpstreamConfig;
use countersign_protocol::Era;

/// The configured time limits of an upstream.
#[derive(Debug)]
pub struct CallTimeouts {
    default_timeout: Duration,
    tools: Vec<(GlobMatcher, Duration)>,
}

impl CallTimeouts {
    /// Builds the limits. The globs were validated with the configuration.
    #[must_use]
    pub fn new(config: &UpstreamConfig) -> Self {
        let tools = config.tool_timeouts.iter();
        let tools = tools.filter_map(|(glob, time)| Some((Glob::new(glob).ok()?.compile_matcher(), *time)));
        Self { default_timeout: config.timeout, tools: tools.collect() }
    }

    /// Returns the time limit of a call. `tool` is the upstream's own name of the tool.
    #[must_use]
    pub fn for_call(&self, method: &str, tool: Option<&str>) -> Duration {
        if self.tools.is_empty() || method != "tools/call" {
            return self.default_timeout;
        }
        let own = tool.and_then(|tool| self.tools.iter().find(|(glob, _)| glob.is_match(tool)));
        own.map_or(self.default_timeout, |(_, time)| *time)
    }
}

/// Number of consecutive timeouts after which the server is probed.
const TIMEOUTS_BEFORE_PROBE: u32 = 3;
/// Time limit of a probe. A server that works sequentially may still be busy with a request.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// The consecutive timeouts on one connection.
#[derive(Debug, Default)]
pub struct TimeoutStreak {
    timeouts: AtomicU32,
    is_probed: AtomicBool,
}

impl TimeoutStreak {
    /// Resets the count after any answer.
    pub fn record_answer(&self) {
        // The count is usually zero already. Many threads read it, and a needless write would slow all of them down.
        if self.timeouts.load(Ordering::Relaxed) != 0 {
            self.timeouts.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a timeout. Returns `true` if the server must be probed now.
    fn record_timeout(&self) -> bool {
        self.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS_BEFORE_PROBE
            && !self.is_probed.swap(true, Ordering::AcqRel)
    }
}

impl Upstream {
    /// Records that a call on the connection timed out, and starts a probe if necessary.
    pub(crate) fn record_call_timeout(&self, connection: &Arc<UpstreamConnection>) {
        // On other kinds of links, each request has its own stream and cannot block other requests.
        if connection.kind != LinkKind::Shared || !connection.timeout_streak.record_timeout() {
            return;
        }
        let (weak_self, connection) = (self.weak_self.clone(), Arc::clone(connection));
        actix::spawn(async move {
            if let Some(upstream) = weak_self.upgrade() {
                upstream.probe(&connection).await;
            }
        });
    }

    async fn probe(&self, connection: &UpstreamConnection) {
        // The stateless era has no ping (2026-07-28/changelog).
        let method = if connection.era == Era::Modern { "server/discover" } else { "ping" };
        match self.ask_with_timeout(connection, method, "{}", PROBE_TIMEOUT).await {
            Err(OwnRequestError::Timeout) => {
                tracing::warn!(
                    upstream = %self.config.name,
                    "the upstream does not even answer {method} any more; the gateway closes the connection"
                );
                connection.abandon(LinkError::Lost("it no longer answered, and is started again".to_owned()));
            }
            // The connection has ended already.
            Err(OwnRequestError::Link(_)) => {}
            // An error proves that the server is alive too.
            Ok(_) | Err(OwnRequestError::Rpc(_) | OwnRequestError::Malformed(_)) => {
                connection.timeout_streak.record_answer();
                connection.timeout_streak.is_probed.store(false, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_config::UpstreamTarget;

    #[test]
    fn first_matching_glob_sets_tool_timeout() {
        let target =
            UpstreamTarget::Url { urls: vec![], headers: vec![], transport: countersign_config::UrlTransport::Auto };
        let mut config = UpstreamConfig::new("x", target);
        let seconds = Duration::from_secs;
        config.timeout = seconds(60);
        config.tool_timeouts = vec![("slow_*".into(), seconds(600)), ("*".into(), seconds(5))];
        let timeouts = CallTimeouts::new(&config);
        assert_eq!(timeouts.for_call("tools/call", Some("slow_one")), seconds(600));
        assert_eq!(timeouts.for_call("tools/call", Some("other")), seconds(5));
        assert_eq!(timeouts.for_call("tools/call", None), seconds(60));
        assert_eq!(timeouts.for_call("prompts/get", Some("slow_one")), seconds(60));
    }
}
