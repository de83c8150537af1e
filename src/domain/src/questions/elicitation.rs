//! Presents a server's question safely to a person: names the server, escapes hidden characters, shows where a URL
//! leads, and marks requests for credentials (2025-11-25/client/elicitation, "Security Considerations": servers must
//! not ask for credentials in a form).

use std::borrow::Cow;

use serde_json::Value;
use url::Url;

use super::{ELICITATION, adapt_params, is_url_elicitation};
use crate::changes::visible::{escape_hidden, is_hidden};
use countersign_protocol::{
    Revision,
    json::{MemberAction, MemberEdit, edit, edit_members, member, string},
};

/// Substrings that indicate a credential in any text, after removing blanks and punctuation.
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
/// Words that indicate a credential in the name of a field.
const CREDENTIAL_WORDS: [&str; 19] = [
    "token", "secret", "pin", "otp", "totp", "mfa", "2fa", "cvv", "cvc", "cvv2", "ssn", "iban", "pwd", "pass", "jwt",
    "cookie", "bearer", "key", "mnemonic",
];
/// The maximum number of fields that a message names.
const MAX_NAMED_FIELDS: usize = 8;

/// Returns the `params` of a question for a client of that revision, including the name of the server. See
/// [`adapt_params`] for `elicitation_id`.
pub fn params_for_client(
    server: &str,
    method: &str,
    params: Option<&str>,
    client: Revision,
    elicitation_id: Option<&str>,
) -> Option<String> {
    adapt_params(method, attribute_params(server, method, params).as_deref(), client, elicitation_id)
}

/// Adds the name of the server to the `params` of a question. Requests that are not shown to a person are unchanged.
pub fn attribute_params<'a>(server: &str, method: &str, params: Option<&'a str>) -> Option<Cow<'a, str>> {
    let params = params?;
    if method != ELICITATION {
        return Some(params.into());
    }
    let message_text = member(params, "message").and_then(string).unwrap_or_default();
    let server = escape_hidden(server);
    if is_url_elicitation(method, Some(params)) {
        let url = checked_url(params).unwrap_or_default();
        let host = Url::parse(&url).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default();
        let message = format!(
            "The server \"{server}\" asks you to open a page at {host}. Not Countersign: {}",
            escape_hidden(&message_text)
        );
        let (message, url) = (Value::from(message).to_string(), Value::from(url).to_string());
        return Some(edit(params, &[("message", MemberEdit::Set(&message)), ("url", MemberEdit::Set(&url))]).into());
    }
    let mut message = format!("The server \"{server}\" asks, not Countersign: {}", escape_hidden(&message_text));
    let (schema, fields) = match member(params, "requestedSchema") {
        Some(schema) => mark_credentials(schema),
        None => (None, Vec::new()),
    };
    if !fields.is_empty() || mentions_credential(&message_text) {
        let field_list = fields
            .iter()
            .take(MAX_NAMED_FIELDS)
            .map(|field| escape_hidden(field).into_owned())
            .collect::<Vec<_>>()
            .join(", ");
        let field_list = if field_list.is_empty() { String::new() } else { format!(" ({field_list})") };
        message.push_str(&format!(
            "\n\nCareful: this looks like a request for a credential{field_list}. A server should never ask for one in a form."
        ));
    }
    let message = Value::from(message).to_string();
    let mut edits = vec![("message", MemberEdit::Set(message.as_str()))];
    if let Some(schema) = &schema {
        edits.push(("requestedSchema", MemberEdit::Set(schema)));
    }
    Some(edit(params, &edits).into())
}

/// Adds the name of the server to all questions of an `inputRequests` object. Returns `None` if none is shown to a
/// person.
pub fn attribute_requests(server: &str, requests: &str) -> Option<String> {
    edit_members(requests, |_, request| {
        let method = member(request, "method").and_then(string).unwrap_or_default();
        if method != ELICITATION {
            return MemberAction::Keep;
        }
        let params = member(request, "params").unwrap_or("{}");
        let params = attribute_params(server, &method, Some(params)).unwrap_or_default();
        MemberAction::Set(edit(request, &[("params", MemberEdit::Set(&params))]))
    })
}

/// Returns the URL that a question would open, in ASCII.
///
/// # Errors
/// A clause that describes the problem of the question's `url`.
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
    // Internationalized hosts are shown and opened in their ASCII form.
    Ok(if text.is_ascii() { text.into_owned() } else { url.into() })
}

fn authority(url: &str) -> &str {
    let rest = url.split_once(':').map_or(url, |(_, rest)| rest).trim_start_matches('/');
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

/// Marks suspicious fields of a form and escapes hidden characters. Returns the new form, if it differs, and the names
/// of those fields.
fn mark_credentials(schema: &str) -> (Option<String>, Vec<String>) {
    let escaped = escape_hidden_strings(schema);
    let text = escaped.as_deref().unwrap_or(schema);
    let Some(properties) = member(text, "properties") else { return (escaped, Vec::new()) };
    let mut fields = Vec::new();
    let marked_properties = edit_members(properties, |key, property| {
        let member_text = |name: &str| member(property, name).and_then(string).unwrap_or_default();
        let (title, format) = (member_text("title"), member_text("format"));
        let is_suspicious =
            [key, &*title, &*format].into_iter().any(is_credential) || mentions_credential(&member_text("description"));
        if !is_suspicious {
            return MemberAction::Keep;
        }
        let name = if title.is_empty() { key } else { &title };
        fields.push(name.to_owned());
        let title = Value::from(format!("{name} (looks like a credential)")).to_string();
        MemberAction::Set(edit(property, &[("title", MemberEdit::Set(&title))]))
    });
    let Some(properties) = marked_properties else { return (escaped, fields) };
    (Some(edit(text, &[("properties", MemberEdit::Set(&properties))])), fields)
}

/// Escapes every hidden character in the texts of a form; `None` if there is none. Field names are unchanged, because
/// answers refer to them.
fn escape_hidden_strings(schema: &str) -> Option<String> {
    if schema.is_ascii() && !schema.contains("\\u") {
        return None;
    }
    fn escape_strings(value: &mut Value, changed: &mut bool) {
        match value {
            Value::String(text) => {
                if let Cow::Owned(escaped) = escape_hidden(text) {
                    *text = escaped;
                    *changed = true;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| escape_strings(item, changed)),
            Value::Object(entries) => entries.values_mut().for_each(|item| escape_strings(item, changed)),
            _ => {}
        }
    }
    let (mut value, mut changed) = (schema.parse::<Value>().ok()?, false);
    escape_strings(&mut value, &mut changed);
    changed.then(|| value.to_string())
}

fn letters_and_digits(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

fn mentions_credential(text: &str) -> bool {
    let plain = letters_and_digits(text);
    CREDENTIAL_SUBSTRINGS.iter().any(|word| plain.contains(word))
}

/// Returns `true` if a field with that name, title or format asks for a credential.
fn is_credential(name: &str) -> bool {
    if mentions_credential(name) {
        return true;
    }
    // `apiKey` and `API_KEY` are two words each.
    let mut words = String::with_capacity(name.len() + 4);
    let mut after_lower_case = false;
    for c in name.chars() {
        if c.is_uppercase() && after_lower_case {
            words.push(' ');
        }
        after_lower_case = c.is_lowercase();
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

    fn attributed(params: &str) -> Value {
        serde_json::from_str(&attribute_params("notes", ELICITATION, Some(params)).unwrap()).unwrap()
    }

    #[test]
    fn form_names_server_and_keeps_other_bytes() {
        let params = form("Which branch?", r#"{"branch":{"type":"string","default":1.50}}"#);
        let attributed_params = attribute_params("notes", ELICITATION, Some(&params)).unwrap();
        assert_eq!(
            attributed_params,
            params.replace("Which branch?", r#"The server \"notes\" asks, not Countersign: Which branch?"#)
        );
        let hidden = attributed(&form("a\u{202e}b", r#"{"x":{"title":"c\u200bd"}}"#));
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
            let attributed_params = attributed(&form("Please", property));
            let message = attributed_params["message"].as_str().unwrap();
            assert!(message.contains(&format!("looks like a request for a credential ({named})")), "{message}");
            let fields = attributed_params["requestedSchema"]["properties"].as_object().unwrap();
            let title = fields.values().next().unwrap()["title"].as_str().unwrap();
            assert_eq!(title, format!("{named} (looks like a credential)"));
        }
        for property in [r#"{"name":{}}"#, r#"{"max_tokens":{}}"#, r#"{"keyboard":{"description":"pin it"}}"#] {
            assert!(
                !attributed(&form("Please", property))["message"].as_str().unwrap().contains("credential"),
                "{property}"
            );
        }
        assert!(
            attributed(&form("Type your password", r#"{"v":{}}"#))["message"].as_str().unwrap().contains("Careful")
        );
    }

    #[test]
    fn each_repeated_question_names_the_server() {
        let question = |n: i32| format!(r#""q":{{"method":"elicitation/create","params":{{"message":"m{n}"}}}}"#);
        let requests = format!("{{{}}}", (0..70).map(question).collect::<Vec<_>>().join(","));
        let attributed_requests = attribute_requests("notes", &requests).unwrap();
        for n in 0..70 {
            assert!(attributed_requests.contains(&format!(r#"asks, not Countersign: m{n}""#)), "{attributed_requests}");
        }
        assert_eq!(attribute_requests("notes", r#"{"q":{"method":"roots/list"}}"#), None);
    }

    #[test]
    fn only_plain_web_urls_are_accepted() {
        for (url, is_valid) in [
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
            assert_eq!(checked_url(&params).is_ok(), is_valid, "{url}");
        }
        let attributed_params = attributed(r#"{"mode":"url","url":"https://аpple.example/","message":"sign in"}"#);
        assert_eq!(attributed_params["url"], "https://xn--pple-43d.example/");
        let message = attributed_params["message"].as_str().unwrap();
        assert!(
            message.starts_with(r#"The server "notes" asks you to open a page at xn--pple-43d.example."#),
            "{message}"
        );
    }
}
