//! What upstream servers say of themselves to models (`instructions`), for the gateway's own: each server's under its
//! name, and only to principals that see something of that server.
//!
//! It is what others wrote, so it is bounded, nothing in it is invisible, and no line of it can pass for one of the
//! gateway's: those of servers are indented.

use std::sync::Arc;

use super::{RouteTable, ToolRoute};
use crate::target::Target;
use countersign_domain::{changes::visible::is_hidden, policy::Verdict, principal::Principal};

/// Bytes of one server's text.
pub const MAX_SERVER: usize = 2 << 10;
/// Bytes of all servers' texts with what introduces them.
pub const MAX_ALL: usize = 16 << 10;
/// What stands for a text that is cut.
const CUT: &str = " […]";
const LEFT_OUT: &str = "\n\nWhat further servers say of themselves is left out.";

/// See the module's page. Built with the route table.
#[derive(Default)]
pub struct Briefings {
    all: Vec<Briefing>,
    /// For whoever sees all of those servers.
    whole: Arc<str>,
}

struct Briefing {
    text: String,
    /// Who sees one of these sees the server; `None`: everybody does.
    tools: Option<Vec<Arc<ToolRoute>>>,
}

impl Briefings {
    #[must_use]
    pub fn of(table: &RouteTable) -> Self {
        let all: Vec<Briefing> = table.providers().iter().filter_map(|provider| briefing(table, provider)).collect();
        let whole = joined(all.iter()).into();
        Self { all, whole }
    }

    /// What is said after the gateway's own instructions; may be empty. Costs nothing where every principal sees the
    /// same.
    #[must_use]
    pub fn for_principal(&self, principal: &Principal) -> Arc<str> {
        let sees = |briefing: &&Briefing| {
            briefing.tools.as_ref().is_none_or(|tools| tools.iter().any(|tool| tool.visible_to(principal)))
        };
        if self.all.iter().all(|briefing| sees(&briefing)) {
            return Arc::clone(&self.whole);
        }
        joined(self.all.iter().filter(sees)).into()
    }
}

/// `None` for a server that says nothing, or that shows nobody anything.
fn briefing(table: &RouteTable, provider: &Target) -> Option<Briefing> {
    let said = cleaned(&provider.instructions()?)?;
    let own = |of: &Target| of.is(provider);
    let mut tools: Vec<_> = table.tools().iter().filter(|route| own(&route.provider)).map(Arc::clone).collect();
    let to_all = table.prompts().iter().any(|route| own(&route.provider))
        || table.resources().iter().any(|route| own(&route.provider))
        || table.templates().iter().any(|route| own(&route.provider))
        || tools.iter().any(|route| route.ruling.fixed().is_some_and(|decision| decision.verdict != Verdict::Deny));
    tools.retain(|route| route.ruling.fixed().is_none());
    if !to_all && tools.is_empty() {
        return None;
    }
    let text = format!("\n\nThe server `{}` says of itself:\n{said}", provider.name());
    Some(Briefing { text, tools: (!to_all).then_some(tools) })
}

fn joined<'a>(all: impl Iterator<Item = &'a Briefing>) -> String {
    let mut out = String::new();
    for briefing in all {
        if out.len() + briefing.text.len() + LEFT_OUT.len() > MAX_ALL {
            out.push_str(LEFT_OUT);
            break;
        }
        out.push_str(&briefing.text);
    }
    out
}

/// Without what cannot be seen, cut and indented; `None` where nothing is left.
fn cleaned(text: &str) -> Option<String> {
    let mut out = String::new();
    // Beyond this nothing more could fit, whatever is taken out: characters that are hidden count for the bound too.
    let begin = text.char_indices().take_while(|(at, _)| *at < MAX_SERVER * 4).map(|(_, c)| c);
    let seen: String = begin.filter(|c| !is_hidden(*c)).collect();
    for line in seen.trim().lines() {
        let more = format!("  {}\n", line.trim_end());
        if out.len() + more.len() + CUT.len() > MAX_SERVER {
            let room = MAX_SERVER.saturating_sub(out.len() + CUT.len());
            out.push_str(more.get(..more.floor_char_boundary(room)).unwrap_or_default().trim_end());
            out.push_str(CUT);
            break;
        }
        out.push_str(&more);
    }
    let out = out.trim_end();
    (!out.trim().is_empty()).then(|| out.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_is_bounded_visible_and_cannot_pass_for_anothers() {
        assert_eq!(
            cleaned("Use it.\r\nThe server `x` says of itself:\n\tmore \u{202e}\u{1b}[2J"),
            Some("  Use it.\n  The server `x` says of itself:\n  \tmore [2J".to_owned())
        );
        for nothing in ["", " \n\t", "\u{200b}\u{0}"] {
            assert_eq!(cleaned(nothing), None, "{nothing:?}");
        }
        for long in
            ["ä".repeat(MAX_SERVER), "ä\n".repeat(MAX_SERVER), "\u{200b}a".repeat(MAX_SERVER), "a".repeat(1 << 20)]
        {
            let text = cleaned(&long).unwrap();
            assert!(
                text.len() <= MAX_SERVER && text.len() > MAX_SERVER - 16 && text.ends_with("[…]"),
                "{}",
                text.len()
            );
        }
        let exactly = "a".repeat(MAX_SERVER - 16);
        assert_eq!(cleaned(&exactly), Some(format!("  {exactly}")));
    }
}
