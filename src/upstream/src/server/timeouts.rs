//! How long a call may take, by its tool.

use std::time::Duration;

use globset::{Glob, GlobMatcher};

use countersign_config::UpstreamConfig;

/// See the module's page.
#[derive(Debug)]
pub struct Timeouts {
    all: Duration,
    tools: Vec<(GlobMatcher, Duration)>,
}

impl Timeouts {
    /// The configuration has proved its globs.
    #[must_use]
    pub fn new(config: &UpstreamConfig) -> Self {
        let tools = config.tool_timeouts.iter();
        let tools = tools.filter_map(|(glob, time)| Some((Glob::new(glob).ok()?.compile_matcher(), *time)));
        Self { all: config.timeout, tools: tools.collect() }
    }

    /// `tool` is the upstream's own name of it.
    #[must_use]
    pub fn of(&self, method: &str, tool: Option<&str>) -> Duration {
        if self.tools.is_empty() || method != "tools/call" {
            return self.all;
        }
        let own = tool.and_then(|tool| self.tools.iter().find(|(glob, _)| glob.is_match(tool)));
        own.map_or(self.all, |(_, time)| *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_config::UpstreamTarget;

    #[test]
    fn the_first_glob_that_fits_decides_and_only_for_tools() {
        let target =
            UpstreamTarget::Url { urls: vec![], headers: vec![], transport: countersign_config::UrlTransport::Auto };
        let mut config = UpstreamConfig::new("x", target);
        let seconds = Duration::from_secs;
        config.timeout = seconds(60);
        config.tool_timeouts = vec![("slow_*".into(), seconds(600)), ("*".into(), seconds(5))];
        let timeouts = Timeouts::new(&config);
        assert_eq!(timeouts.of("tools/call", Some("slow_one")), seconds(600));
        assert_eq!(timeouts.of("tools/call", Some("other")), seconds(5));
        assert_eq!(timeouts.of("tools/call", None), seconds(60));
        assert_eq!(timeouts.of("prompts/get", Some("slow_one")), seconds(60));
    }
}
