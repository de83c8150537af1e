//! Hashes of a change: of the content shown to a reviewer (`digest`) and of the state that it was computed against
//! (`fingerprint`). Every part is hashed with its length, so that different inputs never hash the same bytes.

use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::{Diff, LineOp, Operation, PreviewKind, PreviewNote, ServedBy, Target};

/// SHA-256 over parts that are each preceded by their length.
#[derive(Clone)]
pub struct PartHasher(Sha256);

impl PartHasher {
    /// Creates a hasher. `domain` separates hashes of different purposes.
    #[must_use]
    pub fn new(domain: &str) -> Self {
        let mut hasher = Self(Sha256::new());
        hasher.add_part(domain.as_bytes());
        hasher
    }

    pub fn add_part(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
        self
    }

    pub fn add_number(&mut self, number: u64) -> &mut Self {
        self.0.update(number.to_be_bytes());
        self
    }

    /// Adds an optional text, and distinguishes `None` from an empty text.
    pub fn add_optional(&mut self, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.add_number(1).add_part(text.as_bytes()),
            None => self.add_number(0),
        }
    }

    #[must_use]
    pub fn finish_bytes(self) -> [u8; 32] {
        self.0.finalize().into()
    }

    /// Formats the hash as `sha256:` and 64 hexadecimal digits.
    #[must_use]
    pub fn finish(self) -> String {
        format!("sha256:{}", hex(&self.finish_bytes()))
    }
}

/// Formats bytes as lower-case hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut out = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    out
}

/// Hashes the live state that a preview was computed against: names and values, in the order given.
#[must_use]
pub fn fingerprint(parts: &[(&str, &str)]) -> String {
    let mut hasher = PartHasher::new("countersign.fingerprint.1");
    for (name, value) in parts {
        hasher.add_part(name.as_bytes()).add_part(value.as_bytes());
    }
    hasher.finish()
}

/// Hashes the bytes of a call's arguments for the audit trail and [`super::Edit`]; equals the output of `sha256sum`.
#[must_use]
pub fn arguments_hash(arguments: &RawValue) -> String {
    bytes_hash(arguments.get())
}

/// Hashes a whole change as it is stored, for the audit trail.
#[must_use]
pub fn body_hash(json: &str) -> String {
    let mut hasher = PartHasher::new("countersign.change.1");
    hasher.add_part(json.as_bytes());
    hasher.finish()
}

/// Hashes the bytes of a text with plain SHA-256, so that anybody can verify it.
#[must_use]
pub fn bytes_hash(text: &str) -> String {
    format!("sha256:{}", hex(&Sha256::digest(text.as_bytes())))
}

/// The content of a change that a reviewer sees.
#[derive(Clone, Copy)]
pub struct ReviewedContent<'a> {
    pub provider: &'a str,
    pub tool: &'a str,
    pub tool_title: &'a str,
    pub tool_hash: &'a str,
    /// The exact bytes that will run.
    pub arguments: &'a RawValue,
    pub operation: Operation,
    pub target: &'a Target,
    pub summary: &'a str,
    pub preview: &'a PreviewNote,
    pub diff: &'a Diff,
    /// `None` for older changes that did not record it; their digests are unchanged.
    pub served_by: Option<&'a ServedBy>,
}

impl ReviewedContent<'_> {
    /// Returns the digest that a decision may carry, as proof of what the reviewer saw.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut hasher = PartHasher::new(match self.served_by {
            None => "countersign.shown.2",
            Some(_) => "countersign.shown.3",
        });
        if let Some(ServedBy { fingerprint, label }) = self.served_by {
            hasher.add_part(fingerprint.as_bytes()).add_part(label.as_bytes());
        }
        for text in [self.provider, self.tool, self.tool_title, self.tool_hash, self.arguments.get(), self.summary] {
            hasher.add_part(text.as_bytes());
        }
        hasher.add_part(self.operation.as_str().as_bytes());
        let Target { entity_type, id, label, lock_key } = self.target;
        hasher.add_part(entity_type.as_bytes()).add_optional(id.as_deref());
        let PreviewNote { kind, failed, restricted: _ } = self.preview;
        hasher.add_number(match kind {
            PreviewKind::Module => 0,
            PreviewKind::DryRun => 1,
            PreviewKind::BeforeAfter => 2,
            PreviewKind::Arguments => 3,
        });
        hasher.add_optional(failed.as_deref());
        hasher.add_part(label.as_bytes()).add_part(lock_key.as_bytes());
        hasher.add_number(u64::from(self.diff.truncated)).add_number(self.diff.fields.len() as u64);
        for field in &self.diff.fields {
            hasher.add_part(field.field.as_bytes()).add_part(field.label.as_bytes());
            hasher.add_optional(field.before.as_deref()).add_optional(field.after.as_deref());
            hasher.add_number(field.lines.len() as u64);
            for line in &field.lines {
                hasher.add_number(match line.op {
                    LineOp::Equal => 0,
                    LineOp::Insert => 1,
                    LineOp::Delete => 2,
                    LineOp::Skip => 3,
                    LineOp::Note => 4,
                });
                hasher.add_part(line.text.as_bytes());
            }
        }
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::diff::DiffBuilder;

    #[test]
    fn fingerprint_separates_parts() {
        assert_ne!(fingerprint(&[("a", "bc")]), fingerprint(&[("ab", "c")]));
        assert_ne!(fingerprint(&[("a", "")]), fingerprint(&[("a", ""), ("", "")]));
        assert!(fingerprint(&[]).starts_with("sha256:") && fingerprint(&[]).len() == 71);
    }

    #[test]
    fn digest_covers_all_reviewed_content() {
        let target =
            Target { entity_type: "issue".into(), id: None, label: "CORE-1".into(), lock_key: "CORE-1".into() };
        let other = Target { id: Some(String::new()), ..target.clone() };
        let arguments = RawValue::from_string(r#"{"a":1}"#.into()).unwrap();
        let respaced = RawValue::from_string(r#"{"a": 1}"#.into()).unwrap();
        let diff = DiffBuilder::new().field("a", "A", None, Some("1")).finish();
        let other_diff = DiffBuilder::new().field("a", "A", Some(""), Some("1")).finish();
        let (plain, failed) =
            (PreviewNote::default(), PreviewNote { failed: Some("x".into()), ..PreviewNote::default() });
        let shown = ReviewedContent {
            provider: "tracker",
            tool: "create_issue",
            tool_title: "Create issue",
            tool_hash: "sha256:0",
            arguments: &arguments,
            operation: Operation::Create,
            target: &target,
            summary: "Create",
            preview: &plain,
            diff: &diff,
            served_by: None,
        };
        let (module, server) = (ServedBy::default(), ServedBy { fingerprint: "sha256:2".into(), label: String::new() });
        let digests = [
            shown,
            ReviewedContent { provider: "docs", ..shown },
            ReviewedContent { preview: &failed, ..shown },
            ReviewedContent { tool: "create_project", ..shown },
            ReviewedContent { tool_title: "x", ..shown },
            ReviewedContent { tool_hash: "sha256:1", ..shown },
            ReviewedContent { arguments: &respaced, ..shown },
            ReviewedContent { operation: Operation::Delete, ..shown },
            ReviewedContent { target: &other, ..shown },
            ReviewedContent { summary: "x", ..shown },
            ReviewedContent { diff: &other_diff, ..shown },
            ReviewedContent { served_by: Some(&module), ..shown },
            ReviewedContent { served_by: Some(&server), ..shown },
        ]
        .map(|s| s.digest());
        let distinct: std::collections::HashSet<_> = digests.iter().collect();
        assert_eq!(distinct.len(), digests.len());
        assert_eq!(digests[0], shown.digest());
    }
}
