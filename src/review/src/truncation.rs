//! Shortens texts of agents, clients and servers before they become part of a change.

use countersign_domain::changes::{ChangeFault, Preview, Proposer};
use countersign_protocol::McpError;

/// The maximum number of characters of a fault's message.
pub(super) const MAX_FAULT_CHARS: usize = 1000;
/// The maximum number of characters of the summary and of the target's label.
const MAX_HEADLINE_CHARS: usize = 500;
/// The maximum number of characters that are kept of each text by which a client names itself.
const MAX_CLIENT_TEXT_CHARS: usize = 200;
/// The maximum number of characters that are kept of an agent's reason.
const MAX_REASON_CHARS: usize = 1000;

/// Truncates a text to at most `max` characters and an ellipsis.
pub(super) fn truncate_chars(text: &mut String, max: usize) {
    if let Some((end, _)) = text.char_indices().nth(max) {
        text.truncate(end);
        text.push('…');
    }
}

/// Converts a provider's error into the fault that the change records.
pub(super) fn to_fault(error: &McpError) -> ChangeFault {
    let mut message = error.message.clone().into_owned();
    truncate_chars(&mut message, MAX_FAULT_CHARS);
    ChangeFault::new(error.kind, message)
}

/// Truncates the summary and label of a preview, which are part of lists and of every event.
pub(super) fn truncate_headlines(mut preview: Preview) -> Preview {
    truncate_chars(&mut preview.summary, MAX_HEADLINE_CHARS);
    truncate_chars(&mut preview.target.label, MAX_HEADLINE_CHARS);
    preview
}

/// Truncates the texts by which the client names itself.
pub(super) fn truncate_client_texts(mut proposer: Proposer) -> Proposer {
    for text in [&mut proposer.client_name, &mut proposer.client_version].into_iter().flatten() {
        truncate_chars(text, MAX_CLIENT_TEXT_CHARS);
    }
    proposer
}

/// Trims and truncates an agent's reason. Returns `None` if it is empty.
pub(super) fn truncate_reason(reason: String) -> Option<String> {
    let mut reason = reason.trim().to_owned();
    truncate_chars(&mut reason, MAX_REASON_CHARS);
    Some(reason).filter(|reason| !reason.is_empty())
}
