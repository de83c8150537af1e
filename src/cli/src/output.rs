//! stdout for results and stderr for complaints. What an agent wrote is made visible before it comes here: nothing
//! that is printed may move the cursor, hide or reorder text.

use std::{
    borrow::Cow,
    io::{self, BufRead, BufWriter, IsTerminal, Write},
};

use serde_json::value::RawValue;
use unicode_width::UnicodeWidthChar;

use super::exit::{Exit, Failure};
use countersign_domain::changes::visible::{is_hidden, visible};
use countersign_protocol::json::{Token, tokens};

/// A colour or weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Plain,
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
    Cyan,
}

impl Style {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Red => "\x1b[31m",
            Self::Green => "\x1b[32m",
            Self::Yellow => "\x1b[33m",
            Self::Cyan => "\x1b[36m",
        }
    }
}

/// Where results go.
pub struct Output {
    to: Sink,
    colour: bool,
    terminal: bool,
    width: Option<usize>,
}

enum Sink {
    // Not locked: `stdio` hands stdout to the protocol while this value lives.
    Stdout(BufWriter<io::Stdout>),
    #[cfg(test)]
    Memory(Vec<u8>),
}

impl Output {
    /// Colour on a terminal, unless `NO_COLOR` is set (no-color.org) or `TERM` is `dumb`.
    pub fn stdout() -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let colour = terminal && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb");
        let width = terminal
            .then(|| rustix::termios::tcgetwinsize(&stdout).ok())
            .flatten()
            .map(|size| usize::from(size.ws_col))
            .filter(|columns| *columns >= 20);
        Self { to: Sink::Stdout(BufWriter::new(stdout)), colour, terminal, width }
    }

    #[cfg(test)]
    pub fn memory(colour: bool) -> Self {
        Self { to: Sink::Memory(Vec::new()), colour, terminal: false, width: None }
    }

    #[cfg(test)]
    pub fn taken(&self) -> String {
        match &self.to {
            Sink::Memory(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Sink::Stdout(_) => String::new(),
        }
    }

    /// Whether it goes to a terminal, which obeys control characters.
    pub const fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Columns of the terminal; `None` elsewhere, where nothing is cut.
    pub const fn width(&self) -> Option<usize> {
        self.width
    }

    /// Text that is known to be harmless, as it is.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        match &mut self.to {
            Sink::Stdout(stdout) => stdout.write_all(text.as_bytes()),
            #[cfg(test)]
            Sink::Memory(bytes) => bytes.write_all(text.as_bytes()),
        }
    }

    /// A line of JSON.
    pub fn json(&mut self, json: &str) -> io::Result<()> {
        self.line(&harmless_json(json))
    }

    /// A line of harmless text.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        self.text(text)?;
        self.text("\n")
    }

    /// Harmless text in a style.
    pub fn styled(&mut self, style: Style, text: &str) -> io::Result<()> {
        if !self.colour || style == Style::Plain {
            return self.text(text);
        }
        self.text(style.code())?;
        self.text(text)?;
        self.text("\x1b[0m")
    }

    /// Writes what is buffered.
    pub fn finish(&mut self) -> io::Result<()> {
        match &mut self.to {
            Sink::Stdout(stdout) => stdout.flush(),
            #[cfg(test)]
            Sink::Memory(_) => Ok(()),
        }
    }
}

/// Somebody else's text on one line: hidden characters visible, line breaks and tabs as `\n` and `\t`.
pub fn one_line(text: &str) -> Cow<'_, str> {
    match visible(text) {
        Cow::Borrowed(text) if !text.contains(['\n', '\t']) => Cow::Borrowed(text),
        text => Cow::Owned(text.replace('\n', "\\n").replace('\t', "\\t")),
    }
}

/// `server / tool`, without the prefix that says the server's name again.
pub fn route(provider: &str, tool: &str) -> String {
    let own = tool.strip_prefix(provider).and_then(|rest| rest.strip_prefix("__")).unwrap_or(tool);
    format!("{provider} / {own}")
}

/// JSON for programs, and for a person who looks at it: what would be hidden in its texts is written as `\u` escapes,
/// which means the same.
pub fn harmless_json(json: &str) -> Cow<'_, str> {
    if !json.chars().any(is_hidden) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 32);
    for c in json.chars() {
        // Outside of texts JSON has no such characters but `\r`, which is white space there.
        if c == '\r' {
            continue;
        }
        if is_hidden(c) {
            let mut units = [0; 2];
            out.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// The text cut to so many columns, with `…` where something is missing.
pub fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    let mut width = 0;
    let mut end = 0;
    for (at, c) in text.char_indices() {
        let next = width + c.width().unwrap_or(0);
        if next > columns {
            return Cow::Owned(format!("{}…", text.get(..end).unwrap_or_default()));
        }
        width = next;
        if width < columns {
            end = at + c.len_utf8();
        }
    }
    Cow::Borrowed(text)
}

/// The columns that a text takes.
pub fn columns(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// One clear paragraph on stderr. A stderr that is gone is nobody's problem.
pub fn complain(message: &str) {
    let _ = writeln!(io::stderr().lock(), "countersign: {message}");
}

/// A remark on stderr, beside the result on stdout.
pub fn remark(message: &str) {
    let _ = writeln!(io::stderr().lock(), "{message}");
}

/// Whether somebody is there to be asked. Where nobody is, `bulk` needs --yes.
///
/// # Errors
/// Where it does.
pub fn asks(json: bool, yes: bool, bulk: Option<&str>) -> Result<bool, Failure> {
    let asks = !json && !yes && io::stdin().is_terminal() && io::stdout().is_terminal();
    match bulk {
        Some(what) if !asks && !yes => {
            let message = format!("there is no terminal to ask on, so {what} needs --yes");
            Err(Failure::new(Exit::Usage, message))
        }
        _ => Ok(asks),
    }
}

/// Asks on the terminal; anything but yes is no. `verb` is what --yes does unasked.
///
/// # Errors
/// An answer that cannot be read.
pub fn yes_or_no(question: &str, verb: &str) -> Result<bool, Failure> {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "{question} [y/N] ");
    let _ = stderr.flush();
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(|error| {
        let message = format!("your answer cannot be read: {error}; use --yes to {verb} without being asked");
        Failure::new(Exit::Failed, message)
    })?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// JSON with line breaks between its tokens and nothing else changed: a number with many digits or a doubly escaped
/// text is shown as it will be sent. What is no JSON is shown as it is.
#[must_use]
pub fn indented(json: &str) -> String {
    if serde_json::from_str::<&RawValue>(json).is_err() {
        return json.to_owned();
    }
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut opened) = (0_usize, false);
    for token in tokens(json) {
        let closes = matches!(token, Token::Close(_));
        depth -= usize::from(closes);
        // A line begins behind a brace and before one, unless nothing is between, and behind a comma.
        if opened != closes || out.ends_with(',') {
            out.push('\n');
            out.extend(std::iter::repeat_n("  ", depth.min(40)));
        }
        opened = matches!(token, Token::Open(_));
        match token {
            Token::Open(brace) | Token::Close(brace) => out.push(brace),
            Token::Key(key) => out.extend([key, ": "]),
            Token::String(text) | Token::Scalar(text) => out.push_str(text),
            Token::Comma => out.push(','),
        }
        depth += usize::from(opened);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_to_columns() {
        assert_eq!(cut("hello", 5), "hello");
        assert_eq!(cut("hello", 4), "hel…");
        assert_eq!(cut("漢字漢字", 5), "漢字…");
        assert_eq!(cut("漢字", 3), "漢…");
        assert_eq!(cut("", 0), "");
        assert_eq!(cut("a", 0), "…");
        for n in 1..12 {
            assert!(columns(&cut("a漢b🎉c漢d", n)) <= n, "{n}");
        }
    }

    #[test]
    fn what_an_agent_wrote_stays_on_its_line() {
        assert_eq!(one_line("a\nb\tc\u{202e}\u{1b}[2J"), "a\\nb\\tc\\u{202e}\\u{1b}[2J");
        assert!(matches!(one_line("plain"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_hides_nothing_and_means_the_same() {
        let json = serde_json::json!({"a\u{202e}": "x\u{200b}\u{7f}\u{e0041}\n\u{1b}y", "ä": 1}).to_string();
        let shown = harmless_json(&format!("{json}\r")).into_owned();
        assert!(shown.contains(r"a\u202e") && shown.contains(r"\u200b\u007f\udb40\udc41"), "{shown}");
        assert!(!shown.chars().any(is_hidden) && shown.contains('ä'));
        let (a, b): (serde_json::Value, serde_json::Value) =
            (serde_json::from_str(&shown).unwrap(), serde_json::from_str(&json).unwrap());
        assert_eq!(a, b);
        assert!(matches!(harmless_json("{\n}"), Cow::Borrowed(_)));
    }

    #[test]
    fn arguments_are_indented_and_otherwise_as_they_came() {
        let raw = r#" {"a":[1,{"b":"x,y:{\"\\"}], "n": 12345678901234567890123.10, "e": {}, "l": [ ] }"#;
        let expected = r#"{
  "a": [
    1,
    {
      "b": "x,y:{\"\\"
    }
  ],
  "n": 12345678901234567890123.10,
  "e": {},
  "l": []
}"#;
        assert_eq!(indented(raw), expected);
    }

    #[test]
    fn colour_only_where_it_is_wanted() {
        let mut out = Output::memory(false);
        out.styled(Style::Red, "x").unwrap();
        assert_eq!(out.taken(), "x");
        let mut out = Output::memory(true);
        out.styled(Style::Red, "x").unwrap();
        assert_eq!(out.taken(), "\x1b[31mx\x1b[0m");
    }
}
