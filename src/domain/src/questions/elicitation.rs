//! What a server asks of a person, as that person is to read it: who asks, and that it is not Countersign; hidden characters
//! made visible; where a page would lead; and what looks like a credential marked as such
//! (2025-11-25/client/elicitation, "Security Considerations": servers must not ask for those in a form).

use std::borrow::Cow;

use serde_json::Value;
use url::Url;

use super::{ELICITATION, adapt_params, is_url_elicitation};
use crate::changes::visible::{escape_hidden, is_hidden};
use countersign_protocol::{
    Revision,
    json::{MemberEdit, edit, member, members, string},
};

/// Words that are a credential wherever they stand, in a text without blanks and signs.
const CREDENTIAL_SUBSTRINGS: [&str; 34] = [
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "passwort",
    "kennwort",
    "contraseña",
    "motdepasse",
    "senha",
    "пароль",
    "密码",
    "密碼",
    "パスワード",
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
    "signingkey",
    "clientsecret",
    "accesstoken",
    "refreshtoken",
    "authtoken",
    "bearertoken",
    "sessiontoken",
    "credential",
    "creditcard",
    "cardnumber",
    "securitycode",
    "verificationcode",
    "recoverycode",
    "onetimecode",
    "seedphrase",
    "socialsecurity",
    "accountnumber",
];
/// Words that are one as the name of a field.
const CREDENTIAL_WORDS: [&str; 19] = [
    "token", "secret", "pin", "otp", "totp", "mfa", "2fa", "cvv", "cvc", "cvv2", "ssn", "iban", "pwd", "pass", "jwt",
    "cookie", "bearer", "key", "mnemonic",
];
/// Fields that are named in a message.
const MAX_NAMED_FIELDS: usize = 8;

/// The `params` of a question of that server as a client of that revision gets them: with who asks, in words that it knows.
/// `elicitation` as in [`adapt_params`].
#[must_use]
pub fn params_for_client(
    server: &str,
    method: &str,
    params: Option<&str>,
    client: Revision,
    elicitation: Option<&str>,
) -> Option<String> {
    adapt_params(method, attribute_params(server, method, params).as_deref(), client, elicitation)
}

/// The `params` of a question of that server with who asks; as they are for other questions than of people.
#[must_use]
pub fn attribute_params<'a>(server: &str, method: &str, params: Option<&'a str>) -> Option<Cow<'a, str>> {
    let params = params?;
    if method != ELICITATION {
        return Some(params.into());
    }
    let said = member(params, "message").and_then(string).unwrap_or_default();
    let server = escape_hidden(server);
    if is_url_elicitation(method, Some(params)) {
        let url = checked_url(params).unwrap_or_default();
        let host = Url::parse(&url).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default();
        let message = format!(
            "The server \"{server}\" asks you to open a page at {host}. Not Countersign: {}",
            escape_hidden(&said)
        );
        let (message, url) = (Value::from(message).to_string(), Value::from(url).to_string());
        return Some(edit(params, &[("message", MemberEdit::Set(&message)), ("url", MemberEdit::Set(&url))]).into());
    }
    let mut message = format!("The server \"{server}\" asks, not Countersign: {}", escape_hidden(&said));
    let (schema, fields) = match member(params, "requestedSchema") {
        Some(schema) => mark_credentials(schema),
        None => (None, Vec::new()),
    };
    if !fields.is_empty() || mentions_credential(&said) {
        let which = fields
            .iter()
            .take(MAX_NAMED_FIELDS)
            .map(|field| escape_hidden(field).into_owned())
            .collect::<Vec<_>>()
            .join(", ");
        let which = if which.is_empty() { String::new() } else { format!(" ({which})") };
        message.push_str(&format!(
            "\n\nCareful: this looks like a request for a credential{which}. A server should never ask for one in a form."
        ));
    }
    let message = Value::from(message).to_string();
    let mut edits = vec![("message", MemberEdit::Set(message.as_str()))];
    if let Some(schema) = &schema {
        edits.push(("requestedSchema", MemberEdit::Set(schema)));
    }
    Some(edit(params, &edits).into())
}

/// All questions of an `inputRequests`, as JSON; `None` where none is of a person.
#[must_use]
pub fn attribute_requests(server: &str, requests: &str) -> Option<String> {
    let mut changed: Vec<(Cow<'_, str>, String)> = Vec::new();
    for request in members(requests) {
        let method = member(request.value, "method").and_then(string).unwrap_or_default();
        let params = member(request.value, "params");
        if method != ELICITATION {
            continue;
        }
        let params = attribute_params(server, &method, Some(params.unwrap_or("{}"))).unwrap_or_default();
        changed.push((request.key, edit(request.value, &[("params", MemberEdit::Set(&params))])));
    }
    let edits: Vec<_> =
        changed.iter().map(|(key, request)| (key.as_ref(), MemberEdit::Set(request.as_str()))).collect();
    (!edits.is_empty()).then(|| edit(requests, &edits))
}

/// Where a question would lead a person, in ASCII.
///
/// # Errors
/// What is wrong with its `url`.
pub fn checked_url(params: &str) -> Result<String, &'static str> {
    let text = member(params, "url").and_then(string).ok_or("it has no `url`")?;
    if text.chars().any(|c| is_hidden(c) || c.is_whitespace() || c == '\\') {
        return Err("its `url` contains invisible characters, blanks or backslashes");
    }
    let url = Url::parse(&text).map_err(|_| "its `url` is not a URL")?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("its `url` is neither http nor https");
    }
    if !url.username().is_empty() || url.password().is_some() || authority(&text).contains('@') {
        return Err("its `url` has a user name in it");
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("its `url` names no host");
    }
    // A host in other letters is shown, and opened, as it is spelled in the network.
    Ok(if text.is_ascii() { text.into_owned() } else { url.into() })
}

fn authority(url: &str) -> &str {
    let rest = url.split_once(':').map_or(url, |(_, rest)| rest).trim_start_matches('/');
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

/// The form with its suspicious fields marked and nothing hidden in it, where it is another then; and those fields.
fn mark_credentials(schema: &str) -> (Option<String>, Vec<String>) {
    let shown = escape_hidden_strings(schema);
    let text = shown.as_deref().unwrap_or(schema);
    let Some(properties) = member(text, "properties") else { return (shown, Vec::new()) };
    let mut fields = Vec::new();
    let mut changed: Vec<(Cow<'_, str>, String)> = Vec::new();
    for property in members(properties) {
        let said = |key: &str| member(property.value, key).and_then(string).unwrap_or_default();
        let (title, format) = (said("title"), said("format"));
        let suspicious = [&*property.key, &*title, &*format].iter().any(|name| is_credential(name))
            || mentions_credential(&said("description"));
        if suspicious {
            let name = if title.is_empty() { property.key.as_ref() } else { &title };
            let title = Value::from(format!("{name} (looks like a credential)")).to_string();
            fields.push(name.to_owned());
            changed.push((property.key.clone(), edit(property.value, &[("title", MemberEdit::Set(&title))])));
        }
    }
    if changed.is_empty() {
        return (shown, fields);
    }
    let edits: Vec<_> = changed.iter().map(|(key, value)| (key.as_ref(), MemberEdit::Set(value.as_str()))).collect();
    let properties = edit(properties, &edits);
    (Some(edit(text, &[("properties", MemberEdit::Set(&properties))])), fields)
}

/// With every hidden character in its texts made visible; `None` where there is none. The names of fields stay: answers
/// are known by them.
fn escape_hidden_strings(schema: &str) -> Option<String> {
    if schema.is_ascii() && !schema.contains("\\u") {
        return None;
    }
    fn show(value: &mut Value, changed: &mut bool) {
        match value {
            Value::String(text) => {
                if let Cow::Owned(shown) = escape_hidden(text) {
                    *text = shown;
                    *changed = true;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| show(item, changed)),
            Value::Object(entries) => entries.values_mut().for_each(|item| show(item, changed)),
            _ => {}
        }
    }
    let (mut value, mut changed) = (serde_json::from_str::<Value>(schema).ok()?, false);
    show(&mut value, &mut changed);
    changed.then(|| value.to_string())
}

fn letters_and_digits(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

fn mentions_credential(text: &str) -> bool {
    let plain = letters_and_digits(text);
    CREDENTIAL_SUBSTRINGS.iter().any(|word| plain.contains(word))
}

/// Whether a field of that name, title or format asks for a credential.
fn is_credential(name: &str) -> bool {
    if mentions_credential(name) {
        return true;
    }
    // `apiKey` and `API_KEY` are two words each.
    let mut words = String::with_capacity(name.len() + 4);
    let mut lower = false;
    for c in name.chars() {
        if c.is_uppercase() && lower {
            words.push(' ');
        }
        lower = c.is_lowercase();
        words.extend(if c.is_alphanumeric() { c.to_lowercase().next() } else { Some(' ') });
    }
    words.split(' ').any(|word| CREDENTIAL_WORDS.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(message: &str, properties: &str) -> String {
        format!(r#"{{"message":{},"requestedSchema":{{"properties":{properties},"n":1.50}}}}"#, Value::from(message))
    }

    fn shown(params: &str) -> Value {
        serde_json::from_str(&attribute_params("notes", ELICITATION, Some(params)).unwrap()).unwrap()
    }

    #[test]
    fn form_names_server_and_keeps_other_bytes() {
        let params = form("Which branch?", r#"{"branch":{"type":"string","default":1.50}}"#);
        let got = attribute_params("notes", ELICITATION, Some(&params)).unwrap();
        assert_eq!(
            got,
            params.replace("Which branch?", r#"The server \"notes\" asks, not Countersign: Which branch?"#)
        );
        let hidden = shown(&form("a\u{202e}b", r#"{"x":{"title":"c\u200bd"}}"#));
        assert_eq!(hidden["message"], r#"The server "notes" asks, not Countersign: a\u{202e}b"#);
        assert_eq!(hidden["requestedSchema"]["properties"]["x"]["title"], r"c\u{200b}d");
        assert_eq!(attribute_params("notes", "roots/list", Some("{}")).as_deref(), Some("{}"));
        assert_eq!(attribute_params("notes", ELICITATION, None), None);
    }

    #[test]
    fn credential_fields_are_marked() {
        for (property, named) in [
            (r#"{"password":{}}"#, "password"),
            (r#"{"a":{"title":"Your Pass-Word"}}"#, "Your Pass-Word"),
            (r#"{"a":{"format":"password"}}"#, "a"),
            (r#"{"apiKey":{}}"#, "apiKey"),
            (r#"{"GITHUB_TOKEN":{}}"#, "GITHUB_TOKEN"),
            (r#"{"a":{"description":"the credit card's number"}}"#, "a"),
            (r#"{"PIN":{}}"#, "PIN"),
            (r#"{"clientSecret":{"title":"x"}}"#, "x"),
        ] {
            let got = shown(&form("Please", property));
            let message = got["message"].as_str().unwrap();
            assert!(message.contains(&format!("looks like a request for a credential ({named})")), "{message}");
            let fields = got["requestedSchema"]["properties"].as_object().unwrap();
            let title = fields.values().next().unwrap()["title"].as_str().unwrap();
            assert_eq!(title, format!("{named} (looks like a credential)"));
        }
        for property in [r#"{"name":{}}"#, r#"{"max_tokens":{}}"#, r#"{"keyboard":{"description":"pin it"}}"#] {
            assert!(
                !shown(&form("Please", property))["message"].as_str().unwrap().contains("credential"),
                "{property}"
            );
        }
        assert!(shown(&form("Type your password", r#"{"v":{}}"#))["message"].as_str().unwrap().contains("Careful"));
    }

    #[test]
    fn only_plain_web_urls_are_accepted() {
        for (url, fine) in [
            ("https://a.example/x?y#z", true),
            ("http://127.0.0.1:1/", true),
            ("javascript:alert(1)", false),
            ("file:///etc/passwd", false),
            ("data:text/html,x", false),
            ("https://good.example@evil.example/", false),
            ("https://@evil.example/", false),
            ("https:\\\\evil.example", false),
            (" https://a.example", false),
            ("https://a.example/\u{202e}x", false),
            ("a.example", false),
            ("", false),
        ] {
            let params = serde_json::json!({ "mode": "url", "url": url, "message": "m" }).to_string();
            assert_eq!(checked_url(&params).is_ok(), fine, "{url}");
        }
        let got = shown(r#"{"mode":"url","url":"https://аpple.example/","message":"sign in"}"#);
        assert_eq!(got["url"], "https://xn--pple-43d.example/");
        let message = got["message"].as_str().unwrap();
        assert!(
            message.starts_with(r#"The server "notes" asks you to open a page at xn--pple-43d.example."#),
            "{message}"
        );
    }
}
