//! Time limits of calls by tool.

use std::time::Duration;

use globset::{Glob, GlobMatcher};

use countersign_config::UpstreamConfig;

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
