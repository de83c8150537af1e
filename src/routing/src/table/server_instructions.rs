//! The `instructions` of upstream servers, appended to the gateway's own under the server's name. A principal only sees the
//! instructions of servers that it can use.
//!
//! The text is foreign: it is bounded and contains no hidden characters, and it is indented so that no line looks like the
//! gateway's own text.

use std::sync::Arc;

use super::{PersonalLists, RouteTable, RouteTarget, ToolRoute};
use countersign_domain::{changes::visible::is_hidden, policy::Verdict, principal::Principal};

/// Maximum number of bytes of one server's text.
pub const MAX_SERVER_BYTES: usize = 2 << 10;
/// Maximum number of bytes of all servers' sections together.
pub const MAX_TOTAL_BYTES: usize = 16 << 10;
/// Marks a truncated text.
const TRUNCATION_MARK: &str = " […]";
const OMISSION_NOTE: &str = "\n\nThe instructions of further servers are left out.";

/// The instructions of all servers, built with the route table.
#[derive(Default)]
pub struct ServerInstructions {
    sections: Vec<InstructionsSection>,
    /// The text for principals that see every server.
    unfiltered: Arc<str>,
}

struct InstructionsSection {
    text: String,
    /// A principal sees the section if one of these tools is visible to it; `None` if every principal sees it.
    tools: Option<Vec<Arc<ToolRoute>>>,
}

impl ServerInstructions {
    pub fn for_table(table: &RouteTable) -> Self {
        let sections: Vec<InstructionsSection> =
            table.providers().iter().filter_map(|provider| section_for(table, provider)).collect();
        let unfiltered = join_sections(sections.iter()).into();
        Self { sections, unfiltered }
    }

    /// Returns the text to append to the gateway's own instructions, which may be empty. The text is shared if the principal
    /// sees every section.
    pub fn for_principal(&self, principal: &Principal) -> Arc<str> {
        let mut lists = PersonalLists::new(principal);
        let mut can_see = |section: &&InstructionsSection| {
            section.tools.as_ref().is_none_or(|tools| tools.iter().any(|tool| tool.is_in(&mut lists)))
        };
        if self.sections.iter().all(|section| can_see(&section)) {
            return Arc::clone(&self.unfiltered);
        }
        join_sections(self.sections.iter().filter(can_see)).into()
    }
}

/// Returns the section of a server, or `None` if the server has no instructions or nothing that some principal can see.
fn section_for(table: &RouteTable, provider: &RouteTarget) -> Option<InstructionsSection> {
    let instructions = sanitize(&provider.as_provider().instructions()?)?;
    let is_own = |route_provider: &RouteTarget| route_provider.is_same_provider(provider);
    let mut tools: Vec<_> = table.tools().iter().filter(|route| is_own(&route.provider)).map(Arc::clone).collect();
    let is_visible_to_all = table.prompts().iter().any(|route| is_own(&route.provider))
        || table.resources().iter().any(|route| is_own(&route.provider))
        || table.templates().iter().any(|route| is_own(&route.provider))
        || tools
            .iter()
            .any(|route| route.ruling.fixed_decision().is_some_and(|decision| decision.verdict != Verdict::Deny));
    tools.retain(|route| route.ruling.fixed_decision().is_none());
    if !is_visible_to_all && tools.is_empty() {
        return None;
    }
    let text = format!("\n\nThe server `{}` says of itself:\n{instructions}", provider.name());
    Some(InstructionsSection { text, tools: (!is_visible_to_all).then_some(tools) })
}

fn join_sections<'a>(sections: impl Iterator<Item = &'a InstructionsSection>) -> String {
    let mut out = String::new();
    for section in sections {
        if out.len() + section.text.len() + OMISSION_NOTE.len() > MAX_TOTAL_BYTES {
            out.push_str(OMISSION_NOTE);
            break;
        }
        out.push_str(&section.text);
    }
    out
}

/// Removes hidden characters, truncates and indents the text. Returns `None` if nothing is left.
fn sanitize(text: &str) -> Option<String> {
    let mut out = String::new();
    // More input than this cannot fit. Hidden characters count as well, so that the work is bounded.
    let beginning = text.char_indices().take_while(|(index, _)| *index < MAX_SERVER_BYTES * 4).map(|(_, c)| c);
    let visible: String = beginning.filter(|c| !is_hidden(*c)).collect();
    for line in visible.trim().lines() {
        let next_line = format!("  {}\n", line.trim_end());
        if out.len() + next_line.len() + TRUNCATION_MARK.len() > MAX_SERVER_BYTES {
            let available_bytes = MAX_SERVER_BYTES.saturating_sub(out.len() + TRUNCATION_MARK.len());
            out.push_str(
                next_line.get(..next_line.floor_char_boundary(available_bytes)).unwrap_or_default().trim_end(),
            );
            out.push_str(TRUNCATION_MARK);
            break;
        }
        out.push_str(&next_line);
    }
    let out = out.trim_end();
    (!out.trim().is_empty()).then(|| out.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_sanitized_and_indented() {
        assert_eq!(
            sanitize("Use it.\r\nThe server `x` says of itself:\n\tmore \u{202e}\u{1b}[2J"),
            Some("  Use it.\n  The server `x` says of itself:\n  \tmore [2J".to_owned())
        );
        for nothing in ["", " \n\t", "\u{200b}\u{0}"] {
            assert_eq!(sanitize(nothing), None, "{nothing:?}");
        }
        for long in [
            "ä".repeat(MAX_SERVER_BYTES),
            "ä\n".repeat(MAX_SERVER_BYTES),
            "\u{200b}a".repeat(MAX_SERVER_BYTES),
            "a".repeat(1 << 20),
        ] {
            let text = sanitize(&long).unwrap();
            assert!(
                text.len() <= MAX_SERVER_BYTES && text.len() > MAX_SERVER_BYTES - 16 && text.ends_with("[…]"),
                "{}",
                text.len()
            );
        }
        let longest = "a".repeat(MAX_SERVER_BYTES - 16);
        assert_eq!(sanitize(&longest), Some(format!("  {longest}")));
    }
}
