//! What goes out: the event as it is in the feed, or a message for a chat that is made of it.

use bytes::Bytes;
use serde_json::{Value, json};

use super::template::{Template, Values, json_text};

/// For whom a delivery is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The feed's event with a `link`, or a template of JSON.
    Json,
    /// An incoming webhook of Slack.
    Slack,
    /// A workflow of Microsoft Teams that takes adaptive cards.
    Teams,
    /// A webhook of a Discord channel.
    Discord,
    /// Plain text.
    Text,
}

impl Format {
    /// As the configuration has them.
    pub const NAMES: [(&'static str, Self); 5] = [
        ("json", Self::Json),
        ("slack", Self::Slack),
        ("teams", Self::Teams),
        ("discord", Self::Discord),
        ("text", Self::Text),
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        Self::NAMES.iter().find(|(_, format)| *format == self).map_or("json", |(name, _)| name)
    }

    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; charset=utf-8",
            _ => "application/json",
        }
    }

    /// The body for one event: its JSON as it is in the feed, and the link to its change.
    #[must_use]
    pub fn body(self, event: &str, link: &str, template: Option<&Template>) -> Bytes {
        if self == Self::Json && template.is_none() {
            return with_link(event, link).into();
        }
        let event: Value = serde_json::from_str(event).unwrap_or_default();
        let values = Values::new(&event, link);
        match self {
            Self::Json => template.map_or(String::new(), |template| template.fill(&values, json_text)),
            Self::Slack => slack(&values, template).to_string(),
            Self::Teams => teams(&values, template).to_string(),
            Self::Discord => discord(&values, template).to_string(),
            Self::Text => match template {
                Some(template) => template.fill(&values, str::to_owned),
                None => [headline(&values), details(&values), link.to_owned()].join("\n"),
            },
        }
        .into()
    }
}

/// The event's own bytes, with one more member.
fn with_link(event: &str, link: &str) -> String {
    match event.trim_end().strip_suffix('}') {
        Some(open) => format!("{open},\"link\":{}}}", Value::from(link)),
        None => event.to_owned(),
    }
}

/// What happened to what.
fn headline(values: &Values<'_>) -> String {
    format!("{}: {}", values.get("what"), values.get("change.summary"))
}

fn details(values: &Values<'_>) -> String {
    let mut parts = vec![format!("{} of {}", values.get("change.tool"), values.get("change.provider"))];
    let proposer = values.get("change.proposer");
    if proposer != values.get("actor") {
        parts.push(format!("proposed by {proposer}"));
    }
    let labelled = [("comment", "comment"), ("fault", "change.fault")];
    parts.extend(
        labelled
            .into_iter()
            .map(|(label, name)| (label, values.get(name)))
            .filter_map(|(label, text)| (!text.is_empty()).then(|| format!("{label}: {text}"))),
    );
    parts.join(" · ")
}

/// Slack reads `<…>` as links and mentions, in every kind of text (api.slack.com, "Formatting text for app surfaces").
fn slack_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Block Kit; what others wrote stands in plain text, or where nothing is made a link by itself (`verbatim`).
fn slack(values: &Values<'_>, template: Option<&Template>) -> Value {
    let plain = |text: &str| json!({ "type": "plain_text", "text": slack_text(text), "emoji": false });
    let mut blocks = match template {
        Some(template) => {
            let text = template.fill(values, |text| defanged(&slack_text(text)));
            vec![json!({ "type": "section", "text": { "type": "mrkdwn", "text": cut(&text, 2900), "verbatim": true } })]
        }
        None => vec![
            json!({ "type": "section", "text": plain(&headline(values)) }),
            json!({ "type": "context", "elements": [plain(&cut(&details(values), 1900))] }),
        ],
    };
    blocks.push(json!({
        "type": "actions",
        "elements": [{ "type": "button", "text": plain("Open the change"), "url": values.link() }],
    }));
    json!({
        "text": defanged(&slack_text(&headline(values))), "blocks": blocks, "unfurl_links": false,
        "unfurl_media": false,
    })
}

/// An adaptive card; its text runs know no markup (adaptivecards.io, "TextRun").
fn teams(values: &Values<'_>, template: Option<&Template>) -> Value {
    let line = |text: String, bold: bool| {
        let weight = if bold { "Bolder" } else { "Default" };
        json!({ "type": "RichTextBlock", "inlines": [{ "type": "TextRun", "text": text, "weight": weight }] })
    };
    let body: Vec<Value> = match template {
        Some(template) => {
            template.fill(values, defanged).lines().take(50).map(|text| line(text.to_owned(), false)).collect()
        }
        None => vec![line(defanged(&headline(values)), true), line(defanged(&details(values)), false)],
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
                "actions": [{ "type": "Action.OpenUrl", "title": "Open the change", "url": values.link() }],
            },
        }],
    })
}

/// Discord's markdown, with every mark of it escaped in what others wrote.
fn discord_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for c in defanged(text).chars() {
        if matches!(c, '\\' | '*' | '_' | '~' | '`' | '|' | '>' | '<' | '#' | '-' | '[' | ']' | '(' | ')' | '@' | ':') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// `allowed_mentions` without any: whatever stands in it, nobody is called.
fn discord(values: &Values<'_>, template: Option<&Template>) -> Value {
    /// Links get no pictures (`SUPPRESS_EMBEDS`).
    const NO_EMBEDS: u32 = 1 << 2;
    let text = match template {
        Some(template) => cut(&template.fill(values, discord_text), 1900),
        // The link comes last, and what is cut is what comes before it.
        None => {
            let told = format!("**{}**\n{}", discord_text(&headline(values)), discord_text(&details(values)));
            format!("{}\n<{}>", cut(&told, 1600), values.link())
        }
    };
    json!({ "content": text, "allowed_mentions": { "parse": [] }, "flags": NO_EMBEDS })
}

/// Addresses that no chat makes a link of by itself.
fn defanged(text: &str) -> String {
    text.replace("://", "[:]//").replace("www.", "www[.]")
}

fn cut(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
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

    fn body(format: Format, template: Option<&str>) -> String {
        let template = template.map(|text| Template::new(text, format).unwrap());
        let body = format.body(&event(), "https://gw/#/inbox/chg_1", template.as_ref());
        String::from_utf8(body.to_vec()).unwrap()
    }

    fn json_body(format: Format, template: Option<&str>) -> Value {
        serde_json::from_str(&body(format, template)).unwrap()
    }

    #[test]
    fn the_event_goes_out_as_it_is_with_its_link() {
        let out = body(Format::Json, None);
        assert!(out.starts_with(event().trim_end_matches('}')));
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["link"], "https://gw/#/inbox/chg_1");
        let own = json_body(Format::Json, Some(r#"{"text": "{change.summary}"}"#));
        assert_eq!(own, json!({ "text": EVIL }));
    }

    #[test]
    fn slack_mentions_nobody_and_links_to_the_change_alone() {
        for template in [None, Some("{what} {change.summary}")] {
            let value = json_body(Format::Slack, template);
            let text = value.to_string();
            assert!(!text.contains("<!") && !text.contains("<http") && text.contains("&lt;!channel&gt;"), "{text}");
            let blocks = value["blocks"].as_array().unwrap();
            assert_eq!(blocks.last().unwrap()["elements"][0]["url"], "https://gw/#/inbox/chg_1");
            assert!(blocks[0]["text"]["type"] == "plain_text" || blocks[0]["text"]["verbatim"] == true);
        }
    }

    #[test]
    fn discord_mentions_nobody_and_shows_marks_as_they_are() {
        for template in [None, Some("{change.summary}")] {
            let value = json_body(Format::Discord, template);
            assert_eq!(value["allowed_mentions"], json!({ "parse": [] }));
            let text = value["content"].as_str().unwrap();
            assert!(text.contains(r"\@everyone \[x\]\(https\[\:\]//evil\) \*\*b\*\*"), "{text}");
            assert!(text.chars().count() <= 2000);
        }
    }

    #[test]
    fn teams_gets_runs_of_text_without_markup() {
        let value = json_body(Format::Teams, None);
        let card = &value["attachments"][0]["content"];
        assert_eq!(card["actions"][0]["url"], "https://gw/#/inbox/chg_1");
        for block in card["body"].as_array().unwrap() {
            assert_eq!((&block["type"], &block["inlines"][0]["type"]), (&json!("RichTextBlock"), &json!("TextRun")));
        }
        assert!(card["body"][0]["inlines"][0]["text"].as_str().unwrap().starts_with("ci proposes: <!channel>"));
    }

    #[test]
    fn text_is_text() {
        let text = body(Format::Text, None);
        assert_eq!(text, format!("ci proposes: {EVIL}\nwrite_file of files\nhttps://gw/#/inbox/chg_1"));
        assert_eq!(body(Format::Text, Some("{change.id}!")), "chg_1!");
    }

    #[test]
    fn what_is_no_event_ends_nothing() {
        for (_, format) in Format::NAMES {
            for event in ["", "}", "[]", "null", "{\"change\":7}"] {
                let _ = format.body(event, "l", None);
            }
        }
    }
}
