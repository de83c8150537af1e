//! Errors that explain to the proposer why a document is refused.

use serde_json::json;

use crate::text::DocumentRefusal;
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::text::one_line;

/// Builds the error for a document at this path.
pub(crate) fn to_error(path: &str, refusal: DocumentRefusal) -> McpError {
    let error = match refusal {
        DocumentRefusal::UnknownType { name, known_types } => {
            let message = format!("There is no document type {}.", one_line(&name, 80));
            McpError::new(ErrorKind::InvalidDocType, message).with("doc_type", name).with("known", known_types)
        }
        DocumentRefusal::Schema { faults } => {
            let first = faults.first().map_or_else(String::new, |fault| {
                let location = if fault.pointer.is_empty() { "the front matter" } else { fault.pointer.as_str() };
                format!(": {}: {}", one_line(location, 200), one_line(&fault.message, 2000))
            });
            let many = match faults.len() {
                0 | 1 => String::new(),
                more => format!(" ({} faults in all)", more),
            };
            let message = format!("The front matter does not match the document's type{first}{many}");
            McpError::new(ErrorKind::SchemaValidationFailed, message).with("errors", json!(faults))
        }
        DocumentRefusal::Unparsable { reason } => {
            let message = format!("This is not a document: {reason}.");
            McpError::new(ErrorKind::SchemaValidationFailed, message).with("errors", json!([]))
        }
    };
    error.with("path", path)
}
