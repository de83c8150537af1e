//! Where the members of a request's `params` and of its `_meta` lie: found once, when the request comes in, for
//! everybody who asks for one of them on its way.

use std::{borrow::Cow, ops::Range, sync::Arc};

use super::{
    McpError,
    json::{self, Member, MemberEdit},
};

/// A member of an object, as places in the object's text.
#[derive(Debug)]
struct MemberSpan {
    /// Where its key begins, with the quote.
    start: usize,
    /// Bytes of the key between its quotes.
    key_len: usize,
    /// The key, where it is written with escapes.
    escaped: Option<Box<str>>,
    value: Range<usize>,
}

impl MemberSpan {
    fn from_member(member: &Member<'_>) -> Self {
        let escaped = match &member.key {
            Cow::Borrowed(_) => None,
            Cow::Owned(key) => Some(key.as_str().into()),
        };
        let value = member.end - member.value.len()..member.end;
        Self { start: member.start, key_len: member.key.len(), escaped, value }
    }
}

/// See the module's page. It holds places only, and so outlives the buffer that the request came in.
#[derive(Clone, Debug, Default)]
pub struct Outline(Arc<MemberSpans>);

#[derive(Debug, Default)]
struct MemberSpans {
    /// Those of `params`, then those of its last `_meta`.
    spans: Vec<MemberSpan>,
    params_count: usize,
    meta: Option<Range<usize>>,
}

impl Outline {
    /// The outline of `params`, a JSON object. What is none has no members.
    #[must_use]
    pub fn new(params: &str) -> Self {
        let mut spots = MemberSpans { spans: Vec::with_capacity(8), params_count: 0, meta: None };
        for member in json::members(params) {
            let spot = MemberSpan::from_member(&member);
            if member.key == "_meta" {
                spots.meta = Some(spot.value.clone());
            }
            spots.spans.push(spot);
        }
        spots.params_count = spots.spans.len();
        if let Some(meta) = spots.meta.clone().and_then(|place| params.get(place)) {
            spots.spans.extend(json::members(meta).map(|member| MemberSpan::from_member(&member)));
        }
        Self(Arc::new(spots))
    }

    /// The `params` that this is the outline of.
    #[must_use]
    pub fn params<'a>(&'a self, text: &'a str) -> OutlinedParams<'a> {
        let (params, meta) = self.0.spans.split_at(self.0.params_count);
        OutlinedParams {
            object: OutlinedObject { text, spots: params },
            meta: self
                .0
                .meta
                .clone()
                .and_then(|place| text.get(place))
                .map(|text| OutlinedObject { text, spots: meta }),
        }
    }
}

/// An outline in the making, by whoever passes the members of `params` anyway.
pub(super) struct OutlineBuilder {
    params: Vec<MemberSpan>,
    meta: Vec<MemberSpan>,
    meta_range: Option<Range<usize>>,
}

impl OutlineBuilder {
    pub(super) fn new() -> Self {
        Self { params: Vec::with_capacity(8), meta: Vec::new(), meta_range: None }
    }

    /// A member of `params`, whose key begins at `start` with its quote and has no escapes. Places are those in the
    /// text of `params`.
    pub(super) fn add_member(&mut self, key: &str, start: usize, value: Range<usize>) {
        if key == "_meta" {
            self.meta_range = Some(value.clone());
        }
        self.params.push(MemberSpan { start, key_len: key.len(), escaped: None, value });
    }

    /// A `_meta` begins, whose members are those that count.
    pub(super) fn begin_meta(&mut self) {
        self.meta.clear();
    }

    /// A member of `_meta`, with the length of its key. Places are those in its own text.
    pub(super) fn add_meta_member(&mut self, start: usize, key: usize, value: Range<usize>) {
        self.meta.push(MemberSpan { start, key_len: key, escaped: None, value });
    }

    pub(super) fn finish(mut self) -> Outline {
        let of_params = self.params.len();
        self.params.append(&mut self.meta);
        Outline(Arc::new(MemberSpans { spans: self.params, params_count: of_params, meta: self.meta_range }))
    }
}

/// `params` whose members are known.
#[derive(Clone, Copy, Debug)]
pub struct OutlinedParams<'a> {
    pub object: OutlinedObject<'a>,
    /// Its `_meta`, whatever that is.
    pub meta: Option<OutlinedObject<'a>>,
}

/// An object whose members are known; a value without any, if it is none.
#[derive(Clone, Copy, Debug)]
pub struct OutlinedObject<'a> {
    text: &'a str,
    spots: &'a [MemberSpan],
}

impl<'a> OutlinedObject<'a> {
    /// `{}`
    pub const EMPTY: OutlinedObject<'static> = OutlinedObject { text: "{}", spots: &[] };

    /// As it is written.
    #[must_use]
    pub const fn text(&self) -> &'a str {
        self.text
    }

    /// As [`json::members`].
    pub fn members(&self) -> impl Iterator<Item = Member<'a>> + use<'a> {
        let text = self.text;
        self.spots.iter().map_while(move |spot| {
            let key = match &spot.escaped {
                Some(key) => key,
                None => text.get(spot.start + 1..)?.get(..spot.key_len)?,
            };
            let value = text.get(spot.value.clone())?;
            Some(Member { key: Cow::Borrowed(key), value, start: spot.start, end: spot.value.end })
        })
    }

    /// As [`json::add_member`].
    #[must_use]
    pub fn member(&self, key: &str) -> Option<&'a str> {
        self.members().filter(|member| member.key == key).last().map(|member| member.value)
    }

    /// The only member of that name.
    ///
    /// # Errors
    /// `InvalidParams` if there are more.
    pub fn unique_member(&self, key: &str) -> Result<Option<&'a str>, McpError> {
        let mut found = self.members().filter(|member| member.key == key).map(|member| member.value);
        let first = found.next();
        if found.next().is_some() { Err(McpError::repeated_member(key)) } else { Ok(first) }
    }

    /// As [`json::edit_into`].
    pub fn edit_into(&self, out: &mut String, edits: &[(&str, MemberEdit<'_>)]) {
        json::edit_object_into(out, self.text, self.members(), edits);
    }

    /// As [`json::edit`].
    #[must_use]
    pub fn edit(&self, edits: &[(&str, MemberEdit<'_>)]) -> String {
        let mut out = String::with_capacity(self.text.len() + json::max_growth(edits));
        self.edit_into(&mut out, edits);
        out
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
            let edits = [("name", MemberEdit::Set("0")), ("_meta", MemberEdit::Drop), ("x", MemberEdit::Default("1"))];
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
}
