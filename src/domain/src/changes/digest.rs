//! Hashes of a change: of the content shown to a reviewer (`digest`) and of the state that it was computed against
//! (`fingerprint`). Every part is hashed with its length, so that different inputs never hash the same bytes.

use bytes::Bytes;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::{Change, PreviewNote, ServerIdentity, Target};
pub use countersign_protocol::arguments::text_hash;

/// SHA-256 over parts that are each preceded by their length.
#[derive(Clone)]
pub struct PartHasher(Sha256);

impl PartHasher {
    /// Creates a hasher. `domain` separates hashes of different purposes.
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

    /// Adds the number of texts, followed by each of them.
    pub fn add_texts<T: AsRef<str>>(
        &mut self,
        texts: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    ) -> &mut Self {
        let texts = texts.into_iter();
        self.add_number(texts.len() as u64);
        for text in texts {
            self.add_part(text.as_ref().as_bytes());
        }
        self
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
pub fn hex(bytes: &[u8]) -> String {
    // `Bytes` formats itself as hexadecimal, unlike a slice.
    format!("{:x}", Bytes::copy_from_slice(bytes))
}

/// Hashes the live state that a preview was computed against: names and values, in the order given.
pub fn fingerprint<V: AsRef<str>>(parts: &[(&str, V)]) -> String {
    let mut hasher = PartHasher::new("countersign.fingerprint.1");
    for (name, value) in parts {
        hasher.add_part(name.as_bytes()).add_part(value.as_ref().as_bytes());
    }
    hasher.finish()
}

/// Hashes the bytes of a call's arguments for the audit trail and [`super::Edit`]; equals the output of `sha256sum`.
pub fn arguments_hash(arguments: &RawValue) -> String {
    text_hash(arguments.get())
}

/// Hashes the stored JSON of a change for the audit trail.
pub fn body_hash(text: &str) -> String {
    let mut hasher = PartHasher::new("countersign.change.1");
    hasher.add_part(text.as_bytes());
    hasher.finish()
}

impl Change {
    /// Returns the digest of the content that a reviewer sees now. A decision may carry it, as proof of what the reviewer
    /// saw.
    pub fn review_digest(&self) -> String {
        let mut hasher = PartHasher::new("countersign.shown.4");
        let ServerIdentity { fingerprint, label } = &self.served_by;
        hasher.add_part(fingerprint.as_bytes()).add_part(label.as_bytes());
        let texts =
            [&self.provider, &self.tool, &self.tool_title, &self.tool_hash, self.arguments.get(), &self.summary];
        for text in texts {
            hasher.add_part(text.as_bytes());
        }
        hasher.add_part(self.operation.as_str().as_bytes());
        let Target { entity_type, id, label, lock_key } = &self.target;
        hasher.add_part(entity_type.as_bytes()).add_optional(id.as_deref());
        // `tool_operation`, `state_keys` and `awaits_results` follow from the arguments, and `must_fail` from `failed`.
        let PreviewNote {
            kind,
            failed,
            must_fail: _,
            restricted: _,
            tried: _,
            confirms: _,
            tool_operation: _,
            state_keys: _,
            awaits_results: _,
        } = &self.preview;
        hasher.add_number(*kind as u64).add_optional(failed.as_deref());
        hasher.add_part(label.as_bytes()).add_part(lock_key.as_bytes());
        hasher.add_number(u64::from(self.diff.truncated)).add_number(self.diff.fields.len() as u64);
        for field in &self.diff.fields {
            hasher.add_part(field.field.as_bytes()).add_part(field.label.as_bytes());
            hasher.add_optional(field.before.as_deref()).add_optional(field.after.as_deref());
            hasher.add_part(field.format.as_str().as_bytes()).add_optional(field.language.as_deref());
            hasher.add_number(field.lines.len() as u64);
            for line in &field.lines {
                hasher.add_number(line.op as u64).add_part(line.text.as_bytes());
            }
        }
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::changes::{ChangeState, FieldFormat, Operation, diff::DiffBuilder, testing::change};

    #[test]
    fn fingerprint_separates_parts() {
        assert_ne!(fingerprint(&[("a", "bc")]), fingerprint(&[("ab", "c")]));
        assert_ne!(fingerprint(&[("a", "")]), fingerprint(&[("a", ""), ("", "")]));
        let empty = fingerprint::<&str>(&[]);
        assert!(empty.starts_with("sha256:") && empty.len() == 71);
    }

    #[test]
    fn digest_covers_all_reviewed_content() {
        let raw = |text: &str| Arc::from(RawValue::from_string(text.into()).unwrap());
        let diff = |before| DiffBuilder::new().field("a", "A", before, Some("1")).finish();
        let change = |alter: fn(&mut Change)| {
            let mut change = change("chg_1", "agent", 1, ChangeState::Pending);
            alter(&mut change);
            change
        };
        let mut digests = [
            change(|_| {}),
            change(|c| c.provider = "docs".into()),
            change(|c| c.preview.failed = Some("x".into())),
            change(|c| c.tool = "create_project".into()),
            change(|c| c.tool_title = "x".into()),
            change(|c| c.tool_hash = "sha256:1".into()),
            change(|c| c.operation = Operation::Delete),
            change(|c| c.target.id = Some(String::new())),
            change(|c| c.summary = "x".into()),
            change(|c| c.served_by = ServerIdentity { fingerprint: "sha256:2".into(), label: String::new() }),
        ]
        .map(|change| change.review_digest())
        .to_vec();
        for arguments in [r#"{"a":1}"#, r#"{"a": 1}"#] {
            digests.push(Change { arguments: raw(arguments), ..change(|_| {}) }.review_digest());
        }
        for diff in [diff(None), diff(Some(""))] {
            digests.push(Change { diff, ..change(|_| {}) }.review_digest());
        }
        let mut code = diff(None);
        code.fields[0].format = FieldFormat::Code;
        digests.push(Change { diff: code.clone(), ..change(|_| {}) }.review_digest());
        code.fields[0].language = Some("rust".into());
        digests.push(Change { diff: code, ..change(|_| {}) }.review_digest());
        let distinct: std::collections::HashSet<_> = digests.iter().collect();
        assert_eq!(distinct.len(), digests.len());
        assert_eq!(digests[0], change(|_| {}).review_digest());
    }
}
