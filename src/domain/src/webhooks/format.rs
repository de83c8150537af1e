//! Formats of deliveries: the event of the feed, or a chat message that is made from it.
//!
//! To add a format:
//! 1. Add it to [`DeliveryFormat`], from which the configuration takes its name.
//! 2. Define its type and body in [`DeliveryFormat::content_type`] and [`DeliveryFormat::render_body`]; the compiler requires
//!    both.
//! 3. Escape and truncate text written by others as the chat requires. The compiler requires its markup in
//!    `agent_text_is_escaped_in_every_format` and its limit in `messages_stay_within_chat_limits`.
//! 4. Name it in the comment on `format` in `config/countersign.yaml` and in `docs/webhooks.md`;
//!    `each_format_is_documented` checks that.

use bytes::Bytes;
use serde_json::{Value, json};
use strum::{IntoStaticStr, VariantArray};

use super::template::{MessageTemplate, TemplateValues, escape_json};
use crate::webhooks::summary::{details, headline};

/// The format of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum DeliveryFormat {
    /// The event of the feed with a `link`, or a JSON template.
    Json,
    /// An incoming webhook of Slack.
    Slack,
    /// A Microsoft Teams workflow that accepts adaptive cards.
    Teams,
    /// A webhook of a Discord channel.
    Discord,
    /// Plain text.
    Text,
}

impl DeliveryFormat {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; charset=utf-8",
            Self::Json | Self::Slack | Self::Teams | Self::Discord => "application/json",
        }
    }

    /// Renders the body for an event, given as JSON of the feed, and the link to its change.
    pub fn render_body(self, event: &str, link: &str, template: Option<&MessageTemplate>) -> Bytes {
        if self == Self::Json && template.is_none() {
            return add_link(event, link).into();
        }
        let event: Value = event.parse().unwrap_or_default();
        let values = TemplateValues::new(&event, link);
        match self {
            Self::Json => template
                .map_or(String::new(), |template| template.fill(&values, |text| escape_json(&neutralize_markup(text)))),
            Self::Slack => slack(&values, template).to_string(),
            Self::Teams => teams(&values, template).to_string(),
            Self::Discord => discord(&values, template).to_string(),
            Self::Text => match template {
                Some(template) => template.fill(&values, str::to_owned),
                None => {
                    let lines = [headline(&values), details(&values), link.to_owned()];
                    lines.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
                }
            },
        }
        .into()
    }
}

/// Adds a member to the event's JSON without changing the rest.
fn add_link(event: &str, link: &str) -> String {
    match event.trim_end().strip_suffix('}') {
        Some(without_brace) => format!("{without_brace},\"link\":{}}}", Value::from(link)),
        None => event.to_owned(),
    }
}

/// Escapes text for Slack, which treats `<…>` as links and mentions in all texts (api.slack.com, "Formatting text for
/// app surfaces").
fn escape_slack(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Renders a Block Kit message. Text written by others is plain text, or `verbatim`, which disables automatic links.
/// The text of a section or context has at most 3000 characters, and a longer one fails the whole message
/// (docs.slack.dev/reference/block-kit, "Section block", "Text object").
fn slack(values: &TemplateValues<'_>, template: Option<&MessageTemplate>) -> Value {
    const MAX_UNITS: usize = 2900;
    let plain = |text: &str| json!({ "type": "plain_text", "text": escape_within(text, MAX_UNITS, escape_slack), "emoji": false });
    let (headline, details) = (headline(values), details(values));
    let mut blocks = match template {
        Some(template) => {
            let text = template.fill(values, |text| defang_urls(&escape_slack(text)));
            vec![
                json!({ "type": "section", "text": { "type": "mrkdwn", "text": truncate(&text, MAX_UNITS), "verbatim": true } }),
            ]
        }
        None => vec![json!({ "type": "section", "text": plain(&headline) })],
    };
    // Slack also rejects an empty text.
    if template.is_none() && !details.is_empty() {
        blocks.push(json!({ "type": "context", "elements": [plain(&details)] }));
    }
    blocks.push(json!({
        "type": "actions",
        "elements": [{ "type": "button", "text": plain(button_label(values)), "url": values.link() }],
    }));
    json!({
        "text": escape_within(&defang_urls(&headline), MAX_UNITS, escape_slack), "blocks": blocks, "unfurl_links": false,
        "unfurl_media": false,
    })
}

fn button_label(values: &TemplateValues<'_>) -> &'static str {
    if values.get("type").starts_with("change.") { "Open the change" } else { "Open the dashboard" }
}

/// Renders an adaptive card, whose text runs have no markup (adaptivecards.io, "TextRun"). A message has at most 28 KB
/// (learn.microsoft.com, "Format cards in Microsoft Teams" and "Limits and specifications").
fn teams(values: &TemplateValues<'_>, template: Option<&MessageTemplate>) -> Value {
    let line = |text: String, bold: bool| {
        let weight = if bold { "Bolder" } else { "Default" };
        json!({ "type": "RichTextBlock", "inlines": [{ "type": "TextRun", "text": text, "weight": weight }] })
    };
    let body: Vec<Value> = match template {
        Some(template) => {
            // A character takes at most 4 bytes, or 6 in JSON.
            let text = truncate(&template.fill(values, defang_urls), 3000);
            text.lines().take(50).map(|text| line(text.to_owned(), false)).collect()
        }
        None => [(headline(values), true), (details(values), false)]
            .into_iter()
            .filter(|(text, _)| !text.is_empty())
            .map(|(text, bold)| line(truncate(&defang_urls(&text), 1500), bold))
            .collect(),
    };
    json!({
        "type": "message",
        "attachments": [{
            "contentType": "application/vnd.microsoft.card.adaptive",
            "content": {
                "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
                "type": "AdaptiveCard",
                "version": "1.4",
                "body": body,
                "actions": [{ "type": "Action.OpenUrl", "title": button_label(values), "url": values.link() }],
            },
        }],
    })
}

/// Escapes all markdown characters of Discord in text written by others.
fn escape_discord(text: &str) -> String {
    const MARKUP: &str = r"\*_~`|><#-[]()@:";
    let escape = |c: char| MARKUP.contains(c).then_some('\\').into_iter().chain([c]);
    defang_urls(text).chars().flat_map(escape).collect()
}

/// Renders a message with empty `allowed_mentions`, so that it never notifies anyone. At most 2000 characters
/// (docs.discord.com, "Webhook resource", "Execute webhook").
fn discord(values: &TemplateValues<'_>, template: Option<&MessageTemplate>) -> Value {
    /// Disables link previews (`SUPPRESS_EMBEDS`).
    const NO_EMBEDS: u32 = 1 << 2;
    let text = match template {
        Some(template) => truncate(&template.fill(values, escape_discord), 1900),
        // The parts before the link are truncated, never the markup around the headline.
        None => {
            let (headline, details) = (
                escape_within(&headline(values), 900, escape_discord),
                escape_within(&details(values), 700, escape_discord),
            );
            let details = if details.is_empty() { details } else { format!("{details}\n") };
            format!("**{headline}**\n{details}<{}>", values.link())
        }
    };
    json!({ "content": text, "allowed_mentions": { "parse": [] }, "flags": NO_EMBEDS })
}

/// Replaces characters that chats use for markup, mentions and links by lookalikes. The JSON format may be sent to any
/// chat, so no chat's own escapes would be right.
fn neutralize_markup(text: &str) -> String {
    defang_urls(text).replace('<', "\u{ff1c}").replace('>', "\u{ff1e}").replace('@', "\u{ff20}")
}

/// Changes URLs so that no chat turns them into links.
fn defang_urls(text: &str) -> String {
    text.replace("://", "[:]//").replace("www.", "www[.]")
}

/// Truncates a text to a number of UTF-16 code units, as chats count.
fn truncate(text: &str, max_units: usize) -> String {
    escape_within(text, max_units, str::to_owned)
}

/// Escapes and truncates a text, without splitting an escape.
fn escape_within(text: &str, max_units: usize, escape: impl Fn(&str) -> String) -> String {
    let units = |text: &str| text.encode_utf16().count();
    let whole = escape(text);
    if units(&whole) <= max_units {
        return whole;
    }
    let (mut fits, mut too_long) = (0, text.chars().count());
    // Binary search for the longest prefix that fits; escaping preserves the order of lengths.
    while too_long - fits > 1 {
        let middle = fits + (too_long - fits) / 2;
        let prefix: String = text.chars().take(middle).collect();
        if units(&escape(&prefix)) < max_units {
            fits = middle;
        } else {
            too_long = middle;
        }
    }
    let prefix: String = text.chars().take(fits).collect();
    format!("{}…", escape(&prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVIL: &str = "<!channel> <https://evil|x> @everyone [x](https://evil) **b** \",\"y\":\"";

    fn event() -> String {
        json!({
            "type": "change.created", "seq": 5, "at": "2026-01-01T00:00:00Z", "actor": "ci", "comment": null,
            "change": {
                "id": "chg_1", "summary": EVIL, "tool": "write_file", "provider": "files",
                "proposer": { "principal": "ci" }, "target": { "label": "a" },
            },
        })
        .to_string()
    }

    fn body(format: DeliveryFormat, template: Option<&str>) -> String {
        let template = template.map(|text| MessageTemplate::new(text, format).unwrap());
        let body = format.render_body(&event(), "https://gw/#/inbox/chg_1", template.as_ref());
        String::from_utf8(body.to_vec()).unwrap()
    }

    fn json_body(format: DeliveryFormat, template: Option<&str>) -> Value {
        serde_json::from_str(&body(format, template)).unwrap()
    }

    #[test]
    fn json_format_adds_only_a_link() {
        let out = body(DeliveryFormat::Json, None);
        assert!(out.starts_with(event().trim_end_matches('}')));
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["link"], "https://gw/#/inbox/chg_1");
        let custom_message = json_body(DeliveryFormat::Json, Some(r#"{"text": "{change.summary}"}"#));
        let expected = "＜!channel＞ ＜https[:]//evil|x＞ ＠everyone [x](https[:]//evil) **b** \",\"y\":\"";
        assert_eq!(custom_message, json!({ "text": expected }));
    }

    #[test]
    fn slack_message_has_no_mentions_or_foreign_links() {
        for template in [None, Some("{what} {change.summary}")] {
            let value = json_body(DeliveryFormat::Slack, template);
            let text = value.to_string();
            assert!(!text.contains("<!") && !text.contains("<http") && text.contains("&lt;!channel&gt;"), "{text}");
            let blocks = value["blocks"].as_array().unwrap();
            assert_eq!(blocks.last().unwrap()["elements"][0]["url"], "https://gw/#/inbox/chg_1");
            assert!(blocks[0]["text"]["type"] == "plain_text" || blocks[0]["text"]["verbatim"] == true);
        }
    }

    #[test]
    fn discord_message_escapes_mentions_and_marks() {
        for template in [None, Some("{change.summary}")] {
            let value = json_body(DeliveryFormat::Discord, template);
            assert_eq!(value["allowed_mentions"], json!({ "parse": [] }));
            let text = value["content"].as_str().unwrap();
            assert!(text.contains(r"\@everyone \[x\]\(https\[\:\]//evil\) \*\*b\*\*"), "{text}");
            assert!(text.chars().count() <= 2000);
        }
    }

    #[test]
    fn agent_text_is_escaped_in_every_format() {
        for &format in DeliveryFormat::VARIANTS {
            let marks: &[&str] = match format {
                // These formats are read by programs or shown as plain text, so they have no markup.
                DeliveryFormat::Json | DeliveryFormat::Text => &[],
                DeliveryFormat::Slack => &["<!", "<http"],
                DeliveryFormat::Teams => &["://evil"],
                DeliveryFormat::Discord => &["://evil", " @everyone", " **b**", " [x]"],
            };
            let body = body(format, None);
            for mark in marks {
                assert!(!body.contains(mark), "{mark} in {body}");
            }
        }
    }

    #[test]
    fn each_format_is_documented() {
        let file = include_str!("../../../../config/countersign.yaml");
        let (before, _) = file.split_once("#    format: json").unwrap();
        let comment = before.lines().next_back().unwrap();
        let page = include_str!("../../../../docs/webhooks.md");
        let (_, section) = page.split_once("## Choose format and events").unwrap();
        for name in DeliveryFormat::VARIANTS.iter().map(|format| format.as_str()) {
            assert!(comment.contains(name), "config/countersign.yaml: {name}");
            assert!(section.contains(&format!("`{name}`")), "docs/webhooks.md: {name}");
        }
    }

    #[test]
    fn messages_stay_within_chat_limits() {
        for evil in ["<", "&", "*", "\u{1f600}", "\u{202e}", "://", "a"] {
            let long = evil.repeat(5000);
            let event = json!({
                "type": "change.rejected", "actor": long, "comment": long, "change": { "id": "chg_1", "summary": long,
                    "tool": long, "provider": long, "proposer": { "principal": "x" }, "fault": { "message": long } },
            })
            .to_string();
            let many = "{change.summary} ".repeat(20);
            for template in [None, Some(many.as_str())] {
                let units = |value: &Value| value.as_str().unwrap().encode_utf16().count();
                for &format in DeliveryFormat::VARIANTS {
                    let json = || {
                        let template = template.map(|text| MessageTemplate::new(text, format).unwrap());
                        let body = format.render_body(&event, "https://gw/#/inbox/chg_1", template.as_ref());
                        (body.len(), serde_json::from_slice::<Value>(&body).unwrap())
                    };
                    match format {
                        // These formats have no known limit.
                        DeliveryFormat::Json | DeliveryFormat::Text => {}
                        DeliveryFormat::Slack => {
                            let (_, slack) = json();
                            for block in slack["blocks"].as_array().unwrap() {
                                let texts = [&block["text"]["text"], &block["elements"][0]["text"]];
                                for text in texts.into_iter().filter(|text| text.is_string()) {
                                    assert!(units(text) <= 3000 && units(text) > 0, "{evil}");
                                }
                            }
                            assert!(units(&slack["text"]) <= 3000);
                        }
                        DeliveryFormat::Discord => assert!(units(&json().1["content"]) <= 2000, "{evil}"),
                        DeliveryFormat::Teams => assert!(json().0 <= 28 << 10, "{evil}"),
                    }
                }
            }
        }
        assert_eq!(escape_within("a<b", 4, escape_slack), "a…", "escapes are not split");
        assert_eq!(
            (escape_within("", 4, escape_slack), escape_within("<", 4, escape_slack)),
            (String::new(), "&lt;".to_owned())
        );
    }

    #[test]
    fn events_without_change_have_messages() {
        let event = json!({ "type": "provider.down", "provider": "files", "error": null, "at": "x" }).to_string();
        for &format in DeliveryFormat::VARIANTS {
            let body = String::from_utf8(format.render_body(&event, "https://gw/#/servers", None).to_vec()).unwrap();
            assert!(body.contains("https://gw/#/servers") && !body.contains(r#""text":"""#), "{body}");
            assert!(format == DeliveryFormat::Json || body.contains("The server files is down"), "{body}");
        }
    }

    #[test]
    fn teams_message_uses_plain_text_runs() {
        let value = json_body(DeliveryFormat::Teams, None);
        let card = &value["attachments"][0]["content"];
        assert_eq!(card["actions"][0]["url"], "https://gw/#/inbox/chg_1");
        for block in card["body"].as_array().unwrap() {
            assert_eq!((&block["type"], &block["inlines"][0]["type"]), (&json!("RichTextBlock"), &json!("TextRun")));
        }
        assert!(
            card["body"][0]["inlines"][0]["text"].as_str().unwrap().starts_with("ci proposed this change: <!channel>")
        );
    }

    #[test]
    fn text_format_is_plain_text() {
        let text = body(DeliveryFormat::Text, None);
        assert_eq!(text, format!("ci proposed this change: {EVIL}\nfiles / write_file\nhttps://gw/#/inbox/chg_1"));
        assert_eq!(body(DeliveryFormat::Text, Some("{change.id}!")), "chg_1!");
    }

    #[test]
    fn invalid_events_do_not_panic() {
        for &format in DeliveryFormat::VARIANTS {
            for event in ["", "}", "[]", "null", "{\"change\":7}"] {
                let _ = format.render_body(event, "l", None);
            }
        }
    }
}
