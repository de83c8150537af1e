//! The audit trail: one entry for each transition, chained by hashes. An entry that is altered, inserted, removed or
//! moved is detected; an exported head also reveals a truncated trail.

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{
    ChangeState,
    digest::{PartHasher, hex},
};

/// The hash of one entry.
pub type EntryHash = [u8; 32];

/// The previous hash of the first entry.
pub const GENESIS: EntryHash = [0; 32];

/// A stored entry. Its JSON is a line of an export, and an item on the REST endpoint.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditEntry {
    /// The number of the entry: from 1, without gaps.
    pub seq: u64,
    pub at: Timestamp,
    /// `null` if the entry is not about a change, such as an accepted tool definition.
    // The text is empty then.
    #[serde(serialize_with = "serialize_change_id")]
    #[schema(required, value_type = Option<String>)]
    pub change_id: String,
    pub event: String,
    #[schema(required)]
    pub from: Option<ChangeState>,
    // `None` if the entry is not about a change.
    #[schema(required)]
    pub to: Option<ChangeState>,
    pub actor: String,
    /// The details. Those of a change have its `version`, the `digest` that was shown, the `argumentsHash` of the arguments that
    /// were proposed, approved or run (`sha256:` of the bytes), after an edit the `previousArgumentsHash`, and the `changeHash` of
    /// the whole change afterwards. Those of a standing rule have the `rule`.
    #[schema(value_type = Object)]
    pub details: Box<RawValue>,
    /// The hash of the previous entry.
    #[serde(serialize_with = "serialize_hash")]
    #[schema(value_type = String, pattern = "^[0-9a-f]{64}$")]
    pub prev_hash: EntryHash,
    #[serde(serialize_with = "serialize_hash")]
    #[schema(value_type = String, pattern = "^[0-9a-f]{64}$")]
    pub hash: EntryHash,
}

fn serialize_change_id<S: Serializer>(id: &str, serializer: S) -> Result<S::Ok, S::Error> {
    Some(id).filter(|id| !id.is_empty()).serialize(serializer)
}

fn serialize_hash<S: Serializer>(hash: &EntryHash, serializer: S) -> Result<S::Ok, S::Error> {
    hex(hash).serialize(serializer)
}

/// The last entry of the trail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditHead {
    /// 0 if the trail is empty.
    pub seq: u64,
    pub hash: EntryHash,
}

impl AuditHead {
    /// Formats the head as `<seq>:<64 hexadecimal digits>`, to store it elsewhere and compare it later.
    pub fn export(&self) -> String {
        format!("{}:{}", self.seq, hex(&self.hash))
    }

    /// Parses the format of [`AuditHead::export`].
    pub fn parse(text: &str) -> Option<Self> {
        let (seq, digits) = text.trim().split_once(':')?;
        if digits.len() != 64 || !digits.is_ascii() {
            return None;
        }
        let mut hash = GENESIS;
        for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self { seq: seq.parse().ok()?, hash })
    }
}

/// The hashed content of an entry, without the previous hash.
#[derive(Clone, Copy, Debug)]
pub struct EntryContent<'a> {
    pub seq: u64,
    pub at: &'a str,
    pub change_id: &'a str,
    pub event: &'a str,
    pub from: Option<&'a str>,
    pub to: &'a str,
    pub actor: &'a str,
    pub details: &'a str,
}

impl EntryContent<'_> {
    /// Returns the hash of the entry.
    pub fn hash(&self, prev: &EntryHash) -> EntryHash {
        let mut hasher = PartHasher::new("countersign.audit.1");
        hasher.add_part(prev).add_number(self.seq);
        for text in [self.at, self.change_id, self.event] {
            hasher.add_part(text.as_bytes());
        }
        hasher.add_optional(self.from);
        for text in [self.to, self.actor, self.details] {
            hasher.add_part(text.as_bytes());
        }
        hasher.finish_bytes()
    }
}

/// The first inconsistency found in the trail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrailError {
    #[error("entry {expected} is missing: entry {found} comes instead")]
    MissingEntry { expected: u64, found: u64 },
    #[error("entry {seq} does not continue the one before it")]
    BrokenChain { seq: u64 },
    #[error("entry {seq} was altered")]
    Altered { seq: u64 },
    #[error("the trail ends at entry {seq}, before the expected head {expected}")]
    Truncated { seq: u64, expected: u64 },
    #[error("entry {seq} is not the expected head: the trail was rewritten")]
    HeadDiffers { seq: u64 },
    #[error("change {id} does not match its last audit entry {seq}")]
    ChangeAltered { id: String, seq: u64 },
    #[error("change {id} has no audit entry")]
    ChangeUnknown { id: String },
    #[error("change {id} of audit entry {seq} is gone")]
    ChangeGone { id: String, seq: u64 },
    #[error(
        "a column of change {id} (its principal, idempotency key, expiry, end, redaction or plan) does not match audit \
         entry {seq}"
    )]
    ColumnAltered { id: String, seq: u64 },
    #[error("{record} does not match audit entry {seq}")]
    RecordAltered { record: String, seq: u64 },
    #[error("{record} has no audit entry")]
    RecordUnknown { record: String },
    #[error("{record} of audit entry {seq} is gone")]
    RecordGone { record: String, seq: u64 },
    /// An anchor accepts existing rows without proof, so only the first entry that covers rows may be one.
    #[error("entry {seq} anchors keys and definitions a second time")]
    AnchoredAgain { seq: u64 },
}

/// Verifies a trail entry by entry, in bounded memory.
#[derive(Debug, Default)]
pub struct Verifier {
    head: AuditHead,
    expected: Option<AuditHead>,
}

impl Verifier {
    /// Creates a verifier. `expected` is a head that was exported earlier and must be part of the trail.
    pub fn new(expected: Option<AuditHead>) -> Self {
        Self { head: AuditHead::default(), expected }
    }

    /// Verifies the next entry against the stored hashes.
    ///
    /// # Errors
    /// The [`TrailError`] of the first entry that does not match.
    pub fn check_entry(&mut self, content: &EntryContent<'_>, prev_hash: &[u8], hash: &[u8]) -> Result<(), TrailError> {
        let seq = content.seq;
        if seq != self.head.seq + 1 {
            return Err(TrailError::MissingEntry { expected: self.head.seq + 1, found: seq });
        }
        if prev_hash != self.head.hash {
            return Err(TrailError::BrokenChain { seq });
        }
        let computed = content.hash(&self.head.hash);
        if hash != computed {
            return Err(TrailError::Altered { seq });
        }
        if self.expected.is_some_and(|e| e.seq == seq && e.hash != computed) {
            return Err(TrailError::HeadDiffers { seq });
        }
        self.head = AuditHead { seq, hash: computed };
        Ok(())
    }

    /// Returns the head of the verified trail.
    ///
    /// # Errors
    /// [`TrailError::Truncated`] if the expected head is beyond the end.
    pub fn finish(self) -> Result<AuditHead, TrailError> {
        match self.expected {
            Some(e) if e.seq > self.head.seq => Err(TrailError::Truncated { seq: self.head.seq, expected: e.seq }),
            _ => Ok(self.head),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [&str; 4] = ["a", "b", "c", "d"];

    fn content(seq: u64) -> EntryContent<'static> {
        EntryContent {
            seq,
            at: "2026-01-01T00:00:00Z",
            change_id: TEXTS[usize::try_from(seq).unwrap() % 4],
            event: "created",
            from: None,
            to: "pending",
            actor: "alice",
            details: "{}",
        }
    }

    fn trail(length: u64) -> Vec<(EntryContent<'static>, EntryHash, EntryHash)> {
        let mut prev = GENESIS;
        (1..=length)
            .map(|seq| {
                let content = content(seq);
                let hash = content.hash(&prev);
                (content, std::mem::replace(&mut prev, hash), hash)
            })
            .collect()
    }

    fn verify(
        trail: &[(EntryContent<'static>, EntryHash, EntryHash)],
        expected: Option<AuditHead>,
    ) -> Result<AuditHead, TrailError> {
        let mut verifier = Verifier::new(expected);
        for (content, prev, hash) in trail {
            verifier.check_entry(content, prev, hash)?;
        }
        verifier.finish()
    }

    #[test]
    fn trail_verifies_with_earlier_head() {
        let trail = trail(9);
        let head = verify(&trail, None).unwrap();
        assert_eq!(head.seq, 9);
        let earlier = verify(&trail[..5], None).unwrap();
        assert_eq!(verify(&trail, Some(earlier)), Ok(head));
        assert_eq!(AuditHead::parse(&head.export()), Some(head));
        assert_eq!(verify(&[], None), Ok(AuditHead::default()));
        for bad in ["", "1", "1:ab", "x:0", &format!("1:{}", "é".repeat(32)), &format!("1:{}", "g".repeat(64))] {
            assert_eq!(AuditHead::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn tampering_is_reported_at_its_entry() {
        let whole = trail(9);
        let mut cut = whole.clone();
        cut.remove(4);
        assert_eq!(verify(&cut, None), Err(TrailError::MissingEntry { expected: 5, found: 6 }));
        let mut first = whole.clone();
        first.remove(0);
        assert_eq!(verify(&first, None), Err(TrailError::MissingEntry { expected: 1, found: 2 }));
        for field in 0..7 {
            let mut altered = whole.clone();
            let entry = &mut altered[4].0;
            match field {
                0 => entry.at = "x",
                1 => entry.change_id = "x",
                2 => entry.event = "x",
                3 => entry.from = Some("pending"),
                4 => entry.to = "x",
                5 => entry.actor = "x",
                _ => entry.details = "x",
            }
            assert_eq!(verify(&altered, None), Err(TrailError::Altered { seq: 5 }), "field {field}");
        }
        // If the altered entry also gets a new hash, the next entry no longer continues the chain.
        let mut rehashed = whole.clone();
        rehashed[4].0.actor = "mallory";
        rehashed[4].2 = rehashed[4].0.hash(&rehashed[4].1);
        assert_eq!(verify(&rehashed, None), Err(TrailError::BrokenChain { seq: 6 }));
        // Only an exported head reveals a truncated or completely rewritten trail.
        let head = verify(&whole, None).unwrap();
        assert_eq!(verify(&whole[..7], Some(head)), Err(TrailError::Truncated { seq: 7, expected: 9 }));
        let other = AuditHead { seq: 9, hash: [1; 32] };
        assert_eq!(verify(&whole, Some(other)), Err(TrailError::HeadDiffers { seq: 9 }));
    }
}
