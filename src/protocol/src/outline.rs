//! Records the positions of the members of a request's `params` and of its `_meta`. The outline is built once per request and
//! used by every later step. [`check_key_case`] rejects members whose names differ from a meaningful one only in case.

use std::{borrow::Cow, collections::HashSet, ops::Range, sync::Arc};

use super::{
    ErrorKind, McpError,
    json::{self, Member, MemberEdit},
};

/// Members of `params` that have a meaning in requests that the gateway forwards.
const MEANINGFUL_PARAMS: [&str; 11] = [
    "name",
    "arguments",
    "uri",
    "ref",
    "argument",
    "context",
    "taskId",
    "task",
    "inputResponses",
    "requestState",
    "_meta",
];
/// Members of `_meta` that have a meaning in requests that the gateway forwards.
const MEANINGFUL_META: [&str; 1] = ["progressToken"];

/// The position of a member in the text of its object.
#[derive(Debug)]
struct MemberSpan {
    /// Offset of the key, including its quote.
    start: usize,
    /// Length of the key in bytes, without its quotes.
    key_len: usize,
    /// The decoded key, if it is written with escapes.
    decoded_key: Option<Box<str>>,
    value: Range<usize>,
}

impl MemberSpan {
    fn from_member(member: &Member<'_>) -> Self {
        let decoded_key = match &member.key {
            Cow::Borrowed(_) => None,
            Cow::Owned(key) => Some(key.as_str().into()),
        };
        let value = member.end - member.value.len()..member.end;
        Self { start: member.start, key_len: member.key.len(), decoded_key, value }
    }
}

/// The positions of the members of `params`. It holds no text, so it can outlive the buffer of the request.
#[derive(Clone, Debug, Default)]
pub struct Outline(Arc<MemberSpans>);

/// The members that a parser finds in `params`.
#[derive(Debug, Default)]
pub(super) struct MemberSpans {
    params: Vec<MemberSpan>,
    /// The members of the last `_meta` in `params`.
    meta: Vec<MemberSpan>,
    /// The position of the last `_meta` in `params`.
    meta_range: Option<Range<usize>>,
}

impl Outline {
    /// Builds the outline of `params`, a JSON object. Other values have no members.
    pub fn new(params: &str) -> Self {
        let mut spans = MemberSpans::default();
        for member in json::members(params) {
            let span = MemberSpan::from_member(&member);
            if member.key == "_meta" {
                spans.meta_range = Some(span.value.clone());
                spans.meta = json::members(member.value).map(|member| MemberSpan::from_member(&member)).collect();
            }
            spans.params.push(span);
        }
        spans.finish()
    }

    /// Combines the outline with the `params` that it was built from.
    pub fn params<'a>(&'a self, text: &'a str) -> OutlinedParams<'a> {
        let spans = &*self.0;
        let meta_text = spans.meta_range.clone().and_then(|range| text.get(range));
        OutlinedParams {
            object: OutlinedObject { text, spans: &spans.params },
            meta: meta_text.map(|text| OutlinedObject { text, spans: &spans.meta }),
        }
    }
}

impl MemberSpans {
    /// Adds a member of `params`, whose key has no escapes and begins at `start` with its quote. Offsets are relative
    /// to the text of `params`.
    pub(super) fn add_member(&mut self, key: &str, start: usize, value: Range<usize>) {
        if key == "_meta" {
            self.meta_range = Some(value.clone());
        }
        self.params.push(MemberSpan { start, key_len: key.len(), decoded_key: None, value });
    }

    /// Starts a `_meta` and drops the members of an earlier one, because the last one counts.
    pub(super) fn begin_meta(&mut self) {
        self.meta.clear();
    }

    /// Adds a member of `_meta`, whose key has `key_len` bytes. Offsets are relative to the text of `_meta`.
    pub(super) fn add_meta_member(&mut self, start: usize, key_len: usize, value: Range<usize>) {
        self.meta.push(MemberSpan { start, key_len, decoded_key: None, value });
    }

    pub(super) fn finish(self) -> Outline {
        Outline(Arc::new(self))
    }
}

/// `params` and the positions of its members.
#[derive(Clone, Copy, Debug)]
pub struct OutlinedParams<'a> {
    pub object: OutlinedObject<'a>,
    /// The value of `_meta`, which may be of any type.
    pub meta: Option<OutlinedObject<'a>>,
}

/// An object and the positions of its members. Other values have no members.
#[derive(Clone, Copy, Debug)]
pub struct OutlinedObject<'a> {
    text: &'a str,
    spans: &'a [MemberSpan],
}

impl<'a> OutlinedObject<'a> {
    /// The empty object `{}`.
    pub const EMPTY: OutlinedObject<'static> = OutlinedObject { text: "{}", spans: &[] };

    /// Returns the text of the object.
    pub const fn text(&self) -> &'a str {
        self.text
    }

    /// Like [`json::members`].
    pub fn members(&self) -> impl Iterator<Item = Member<'a>> + use<'a> {
        let text = self.text;
        self.spans.iter().map_while(move |span| {
            let key = match &span.decoded_key {
                Some(key) => key,
                None => text.get(span.start + 1..)?.get(..span.key_len)?,
            };
            let value = text.get(span.value.clone())?;
            Some(Member { key: Cow::Borrowed(key), value, start: span.start, end: span.value.end })
        })
    }

    /// Like [`json::member`].
    pub fn member(&self, key: &str) -> Option<&'a str> {
        self.members().filter(|member| member.key == key).last().map(|member| member.value)
    }

    /// Returns the value of the member `key`, if there is exactly one.
    ///
    /// # Errors
    /// `InvalidParams` for a duplicate member.
    pub fn unique_member(&self, key: &str) -> Result<Option<&'a str>, McpError> {
        let mut values = self.members().filter(|member| member.key == key).map(|member| member.value);
        let first = values.next();
        if values.next().is_some() { Err(McpError::repeated_member(key)) } else { Ok(first) }
    }

    /// Like [`json::edit_into`].
    pub fn edit_into(&self, out: &mut String, edits: &[(&str, MemberEdit<'_>)]) {
        json::edit_object_into(out, self.text, self.members(), edits);
    }

    /// Like [`json::edit`].
    pub fn edit(&self, edits: &[(&str, MemberEdit<'_>)]) -> String {
        let mut out = String::with_capacity(self.text.len() + json::max_growth(edits));
        self.edit_into(&mut out, edits);
        out
    }
}

/// Rejects members of `params`, and of its `_meta`, that a case-insensitive reader would confuse with a meaningful one.
///
/// Go's `encoding/json` ignores the case of keys and uses the last match: for a server written in Go,
/// `{"name":"read","Name":"delete"}` calls `delete`. The gateway would check one call and the server would run another,
/// so such keys are refused.
///
/// # Errors
/// `InvalidParams` that names the meaningful member.
pub fn check_key_case(params: &OutlinedParams<'_>) -> Result<(), McpError> {
    check_object(params.object, "params", &MEANINGFUL_PARAMS)?;
    params.meta.map_or(Ok(()), |meta| check_object(meta, "params._meta", &MEANINGFUL_META))
}

fn check_object(object: OutlinedObject<'_>, path: &str, known: &[&str]) -> Result<(), McpError> {
    for member in object.members() {
        if known.contains(&&*member.key) {
            continue;
        }
        // Two ASCII keys of different length differ by more than case.
        let ascii = member.key.is_ascii();
        let is_variant =
            |known: &&&str| (!ascii || known.len() == member.key.len()) && eq_ignoring_case(&member.key, known);
        if let Some(meaningful) = known.iter().find(is_variant) {
            let message = format!("`{path}` has a member that differs from `{meaningful}` in case only");
            return Err(McpError::new(ErrorKind::InvalidParams, message).with("member", *meaningful));
        }
    }
    Ok(())
}

/// Returns `true` if two keys are equal when case is ignored.
fn eq_ignoring_case(a: &str, b: &str) -> bool {
    a.chars().map(fold_case).eq(b.chars().map(fold_case))
}

/// Returns `true` if no two keys of an object are equal when case is ignored. Some parsers ignore case, so that a server could
/// read another of two such members than the gateway.
pub fn are_keys_distinct<'a>(keys: impl Iterator<Item = &'a String>) -> bool {
    let mut folded_keys = HashSet::new();
    keys.map(|key| key.chars().map(fold_case).collect::<String>()).all(|key| folded_keys.insert(key))
}

/// Maps a character to its simple case folding, so that keys that differ only in case become equal.
pub fn fold_case(c: char) -> char {
    if c.is_ascii() {
        return c.to_ascii_lowercase();
    }
    // The upper case comes first, because `ſ` is a lower-case letter that folds to `s`.
    let single = |mut cased: std::char::ToUppercase| match (cased.next(), cased.next()) {
        (Some(upper), None) => upper,
        _ => c,
    };
    let upper = single(c.to_uppercase());
    let mut lower = upper.to_lowercase();
    match (lower.next(), lower.next()) {
        (Some(lower), None) => lower,
        _ => upper,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outline_matches_json_members() {
        for text in [
            r#"{ "name" : "a", "n\u0061me":1 , "_meta":{"a":[{}], "\u0062":"}" }, "arguments":{"_meta":1},"_meta": { "c":null } }"#,
            r#"{"_meta":7}"#,
            "{}",
            "[1]",
            "",
        ] {
            let outline = Outline::new(text);
            let params = outline.params(text);
            assert!(params.object.members().eq(json::members(text)), "{text}");
            assert_eq!(params.meta.map(|meta| meta.text()), json::member(text, "_meta"), "{text}");
            let meta = params.meta.unwrap_or(OutlinedObject::EMPTY);
            assert!(meta.members().eq(json::members(meta.text())), "{text}");
            let edits =
                [("name", MemberEdit::Set("0")), ("_meta", MemberEdit::Drop), ("x", MemberEdit::SetIfMissing("1"))];
            assert_eq!(params.object.edit(&edits), json::edit(text, &edits), "{text}");
        }
    }

    #[test]
    fn unique_member_rejects_duplicates() {
        let text = r#"{"a":1,"\u0061":2,"b":3}"#;
        let outline = Outline::new(text);
        let object = outline.params(text).object;
        assert_eq!(object.unique_member("b"), Ok(Some("3")));
        assert_eq!(object.unique_member("c"), Ok(None));
        assert!(object.unique_member("a").is_err());
        assert_eq!(object.member("a"), Some("2"));
    }

    #[test]
    fn outline_of_other_text_does_not_panic() {
        let outline = Outline::new(r#"{"key":"value","_meta":{"a":1}}"#);
        for text in ["", "{}", "ééééééééé"] {
            let params = outline.params(text);
            let _ = (params.object.members().count(), params.meta.map(|meta| meta.members().count()));
        }
    }

    #[test]
    fn keys_differing_only_in_case_are_refused() {
        let check = |params: &str| check_key_case(&Outline::new(params).params(params));
        for bad in [
            r#"{"name":"a","Name":"b"}"#,
            r#"{"N\u0061ME":"b"}"#,
            r#"{"argument\u017f":{}}"#,
            r#"{"tas\u212A":{}}"#,
            r#"{"taskid":"x"}"#,
            r#"{"_Meta":{}}"#,
        ] {
            assert_eq!(check(bad).unwrap_err().kind, ErrorKind::InvalidParams, "{bad}");
        }
        let meta = r#"{"_meta":{"progressToken":1,"ProgressToken":7}}"#;
        assert_eq!(check(meta).unwrap_err().data["member"], "progressToken");
        for good in [r#"{"name":"a","arguments":{"Name":1,"name":2},"names":1,"vendor":1}"#, "{}"] {
            assert!(check(good).is_ok(), "{good}");
        }
        assert!(check(r#"{"_meta":{"progressToken":1,"a.b/Name":1}}"#).is_ok());
    }
}
