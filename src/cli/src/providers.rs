//! `servers [list]|show|accept|revoke|allow`: servers, the definitions of their tools, and tools that run without review,
//! through a gateway's REST endpoint.

use serde::Deserialize;
use serde_json::json;

use super::{
    args::{AcceptArgs, AllowArgs, ServersArgs, ServersCommand},
    client::{self, Client},
    exit::{Exit, Failure},
    output::{self, Output, Style, asks, columns, one_line, remark, yes_or_no},
};
use countersign_domain::changes::{LineOp, diff::compare_lines, visible::visible};

pub fn run(args: &ServersArgs, out: &mut Output) -> Result<Exit, Failure> {
    let target = client::target(&args.connect)?;
    actix_web::rt::System::new().block_on(async {
        let client = Client::new(target)?;
        let json = args.connect.json;
        match &args.command {
            None | Some(ServersCommand::List) => list(&client, json, out).await,
            Some(ServersCommand::Show { name }) => show(&client, name, json, out).await,
            Some(ServersCommand::Accept(accept)) => self::accept(&client, accept, json, out).await,
            Some(ServersCommand::Allow(allow)) => self::allow(&client, allow, json, out).await,
            Some(ServersCommand::Revoke { name, tools }) => revoke(&client, name, tools, json, out).await,
        }
    })
}

#[derive(Deserialize)]
struct Listed {
    servers: Vec<Provider>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Provider {
    name: String,
    kind: String,
    status: String,
    tools: usize,
    #[serde(default)]
    review: Waiting,
    transport: Option<String>,
    era: Option<String>,
    breaker: Option<String>,
    last_error: Option<String>,
    last_stderr: Option<String>,
    #[serde(default)]
    restarts: u64,
    #[serde(default)]
    left_out: Vec<String>,
    #[serde(default)]
    warnings: Vec<String>,
}

impl Provider {
    /// Why it is not up, and what its program said last.
    fn troubles(&self) -> Vec<String> {
        let error = self.last_error.as_ref().map(|error| one_line(error).into_owned());
        let said = self.last_stderr.as_ref().map(|line| format!("stderr: {}", one_line(line)));
        if self.status == "up" { Vec::new() } else { error.into_iter().chain(said).collect() }
    }

    /// `module`, or how an upstream is spoken to.
    fn how(&self) -> String {
        let parts: Vec<&str> = [self.transport.as_deref(), self.era.as_deref()].into_iter().flatten().collect();
        if parts.is_empty() { self.kind.clone() } else { parts.join(", ") }
    }

    fn stands(&self) -> String {
        match self.breaker.as_deref() {
            None | Some("closed") => self.status.clone(),
            Some(breaker) => format!("{}, circuit {breaker}", self.status),
        }
    }
}

#[derive(Default, Deserialize)]
struct Waiting {
    new: usize,
    changed: usize,
    reads: usize,
}

impl Waiting {
    fn told(&self) -> String {
        let parts = [(self.reads, "claimed reads"), (self.changed, "changed"), (self.new, "new")];
        let parts: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        parts.join(", ")
    }
}

#[derive(Deserialize)]
struct Tools {
    tools: Vec<Tool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tool {
    name: String,
    description: String,
    verdict: String,
    reason: Option<String>,
    rules: Vec<String>,
    standing: String,
    mark: Option<String>,
    claims_read: bool,
    hash: String,
    definition: String,
    previous: Option<String>,
    #[serde(default)]
    may_let_run: bool,
}

impl Tool {
    fn waits(&self) -> bool {
        self.claims_read || self.mark.is_some()
    }

    /// As [`countersign_protocol::annotations::ToolAnnotations`] tells of what it says, whether it counts or not.
    fn says_read(&self) -> bool {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Definition {
            annotations: Hints,
        }
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct Hints {
            read_only_hint: bool,
        }
        serde_json::from_str::<Definition>(&self.definition).is_ok_and(|d| d.annotations.read_only_hint)
    }
}

async fn list(client: &Client, json: bool, out: &mut Output) -> Result<Exit, Failure> {
    let answer = client.get(&["servers"], &[]).await?;
    if json {
        out.json(&answer.json_line()?)?;
        return Ok(Exit::Ok);
    }
    let Listed { servers } = answer.read()?;
    let rows = servers.iter().map(|p| {
        let style = if p.status == "up" { Style::Green } else { Style::Red };
        let restarts = if p.restarts > 0 { p.restarts.to_string() } else { String::new() };
        let cells = [&p.name, &p.how(), &p.stands(), &restarts, &p.tools.to_string(), &p.review.told()];
        (style, cells.map(|c| one_line(c).into_owned()))
    });
    table(["NAME", "THROUGH", "STATUS", "RESTARTS", "TOOLS", "NOT ACCEPTED"], 2, rows.collect(), out)?;
    for server in &servers {
        for trouble in server.troubles() {
            out.styled(Style::Yellow, &format!("! {}: {trouble}", one_line(&server.name)))?;
            out.line("")?;
        }
    }
    Ok(Exit::Ok)
}

async fn show(client: &Client, name: &str, json: bool, out: &mut Output) -> Result<Exit, Failure> {
    let answer = client.get(&["servers", name], &[]).await?;
    if json {
        out.json(&answer.json_line()?)?;
        return Ok(Exit::Ok);
    }
    let Tools { tools } = answer.read()?;
    let rows = tools.iter().map(|tool| {
        let style = match tool.verdict.as_str() {
            "allow" => Style::Green,
            "deny" => Style::Red,
            _ => Style::Yellow,
        };
        let standing = match &tool.mark {
            Some(mark) => mark.clone(),
            None if tool.claims_read => "claims to read".to_owned(),
            None if tool.standing == "seen" => "not accepted".to_owned(),
            None => tool.standing.clone(),
        };
        let why = tool.reason.clone().unwrap_or_else(|| format!("by the rules {}", tool.rules.join(", ")));
        (style, [&tool.name, &standing, &tool.verdict, &why].map(|cell| one_line(cell).into_owned()))
    });
    table(["TOOL", "STANDING", "VERDICT", "WHY"], 2, rows.collect(), out)?;
    let Listed { servers } = client.get(&["servers"], &[]).await?.read()?;
    for server in servers.iter().filter(|server| server.name == name) {
        let faults = server.left_out.iter().chain(&server.warnings).map(|fault| one_line(fault).into_owned());
        for fault in server.troubles().into_iter().chain(faults) {
            out.styled(Style::Yellow, &format!("! {fault}"))?;
            out.line("")?;
        }
    }
    if tools.iter().any(Tool::waits) {
        let name = one_line(name);
        remark(&format!(
            "\nSome are not accepted yet: `countersign servers accept {name} --all-reads`, or --tool NAME."
        ));
    }
    if let Some(tool) = tools.iter().find(|tool| tool.may_let_run) {
        let (name, tool) = (one_line(name), one_line(&tool.name));
        remark(&format!(
            "\nA tool that needs no review: `countersign servers allow {name} {tool} --reason '…'` lets it run."
        ));
    }
    Ok(Exit::Ok)
}

async fn accept(client: &Client, args: &AcceptArgs, json: bool, out: &mut Output) -> Result<Exit, Failure> {
    let asks = asks(json, args.yes, args.all_reads.then_some("--all-reads"))?;
    let Tools { tools } = client.get(&["servers", &args.name], &[]).await?.read()?;
    let chosen: Vec<Tool> = if args.all_reads {
        tools.into_iter().filter(|tool| tool.waits() && tool.says_read()).collect()
    } else {
        choose(tools, &args.tools)?
    };
    if chosen.is_empty() {
        remark("No tool of this server that says that it only reads needs to be accepted.");
        return Ok(Exit::Ok);
    }
    if !json {
        // The acceptance carries the hashes of what is shown here.
        for tool in &chosen {
            definition(tool, out)?;
        }
        out.finish()?;
    }
    let what = counted(chosen.len(), "this definition", "these {n} definitions");
    if asks && !yes_or_no(&format!("Accept {what}?"), "accept")? {
        remark("Nothing was accepted.");
        return Ok(Exit::Failed);
    }
    let answer = client.post(&["servers", &args.name, "accept"], &named(&chosen)).await?;
    if json {
        out.json(&answer.json_line()?)?;
    } else {
        let what = if chosen.len() == 1 { "definition" } else { "definitions" };
        out.styled(Style::Green, &format!("Accepted {} {what}.", chosen.len()))?;
        out.line("")?;
        let after: Tools = answer.read()?;
        let now = |tool: &Tool| after.tools.iter().find(|now| now.name == tool.name);
        let (run, stay): (Vec<&Tool>, Vec<&Tool>) = chosen
            .iter()
            .filter_map(now)
            .filter(|tool| tool.verdict != "deny")
            .partition(|tool| tool.verdict == "allow");
        if !run.is_empty() {
            out.line(&format!("{} now without review.", sentence(&run, "runs", "run")))?;
        }
        if !stay.is_empty() {
            let why = "accepting a definition says that it is known, and only a tool that says that it only reads runs by that";
            out.line(&format!("{} still reviewed: {why}.", sentence(&stay, "is", "are")))?;
            if let Some(tool) = stay.iter().find(|tool| tool.may_let_run) {
                let (server, tool) = (one_line(&args.name), one_line(&tool.name));
                out.line(&format!(
                    "`countersign servers allow {server} {tool} --reason '…'` lets one run without review."
                ))?;
            }
        }
    }
    Ok(Exit::Ok)
}

/// Lets tools run without review.
async fn allow(client: &Client, args: &AllowArgs, json: bool, out: &mut Output) -> Result<Exit, Failure> {
    let several = (args.tools.len() > 1).then_some("letting several tools run");
    let asks = asks(json, args.yes, several)?;
    let Tools { tools } = client.get(&["servers", &args.name], &[]).await?.read()?;
    let chosen = choose(tools, &args.tools)?;
    if !json {
        // The rule is bound to the hashes of what is shown here.
        for tool in &chosen {
            definition(tool, out)?;
        }
        out.finish()?;
    }
    let what = counted(chosen.len(), "this tool", "these {n} tools");
    if asks && !yes_or_no(&format!("Let {what} run without review, whoever calls?"), "allow")? {
        remark("Nothing was allowed.");
        return Ok(Exit::Failed);
    }
    let mut body = named(&chosen);
    body["reason"] = args.reason.as_str().into();
    let answer = client.post(&["servers", &args.name, "allow"], &body).await?;
    if json {
        out.json(&answer.json_line()?)?;
        return Ok(Exit::Ok);
    }
    let run: Vec<&Tool> = chosen.iter().collect();
    out.styled(Style::Green, &format!("{} now without review.", sentence(&run, "runs", "run")))?;
    out.line("")?;
    out.line(
        "Your own calls are still reviewed, and so is any other definition. `countersign rules` lists and revokes it.",
    )?;
    Ok(Exit::Ok)
}

/// One or several, in words; `{n}` is the number.
fn counted(n: usize, one: &str, several: &str) -> String {
    if n == 1 { one.to_owned() } else { several.replace("{n}", &n.to_string()) }
}

/// Names of tools with their verb.
fn sentence(tools: &[&Tool], one: &str, several: &str) -> String {
    /// More are counted.
    const NAMED: usize = 5;
    let mut names: Vec<String> = tools.iter().take(NAMED).map(|tool| one_line(&tool.name).into_owned()).collect();
    if tools.len() > NAMED {
        names.push(format!("{} more", tools.len() - NAMED));
    }
    format!("{} {}", names.join(", "), if tools.len() == 1 { one } else { several })
}

async fn revoke(client: &Client, name: &str, tools: &[String], json: bool, out: &mut Output) -> Result<Exit, Failure> {
    let all: Tools = client.get(&["servers", name], &[]).await?.read()?;
    let chosen = choose(all.tools, tools)?;
    let answer = client.post(&["servers", name, "revoke"], &named(&chosen)).await?;
    if json {
        out.json(&answer.json_line()?)?;
    } else {
        out.line("Revoked.")?;
    }
    Ok(Exit::Ok)
}

fn named(tools: &[Tool]) -> serde_json::Value {
    let tools: Vec<_> = tools.iter().map(|tool| json!({ "name": tool.name, "hash": tool.hash })).collect();
    json!({ "tools": tools })
}

fn choose(tools: Vec<Tool>, names: &[String]) -> Result<Vec<Tool>, Failure> {
    if let Some(missing) = names.iter().find(|name| !tools.iter().any(|tool| tool.name == **name)) {
        let message =
            format!("the server has no tool {}; names are as `countersign servers show` has them", one_line(missing));
        return Err(Failure::new(Exit::NotFound, message));
    }
    Ok(tools.into_iter().filter(|tool| names.contains(&tool.name)).collect())
}

/// A definition as it is accepted: whole, or what differs from the one before.
fn definition(tool: &Tool, out: &mut Output) -> Result<(), Failure> {
    out.styled(Style::Bold, &one_line(&tool.name))?;
    let told = match tool.mark.as_deref() {
        Some("TOOL_CHANGED") => "  changed since it was accepted or first seen",
        Some(_) => "  new",
        None if tool.claims_read => "  says that it only reads",
        None => "",
    };
    out.styled(Style::Yellow, told)?;
    out.line("")?;
    let now = indented(&tool.definition);
    match &tool.previous {
        Some(previous) => {
            let before = indented(previous);
            for (op, line) in compare_lines(&before, &now) {
                let (sign, style) = match op {
                    LineOp::Delete => ("-", Style::Red),
                    LineOp::Insert => ("+", Style::Green),
                    _ => (" ", Style::Plain),
                };
                out.styled(style, &format!("  {sign} {}", one_line(line.trim_end_matches('\n'))))?;
                out.line("")?;
            }
        }
        None => {
            for line in visible(&tool.description).lines() {
                out.line(&format!("  {}", one_line(line)))?;
            }
            for line in now.lines() {
                out.styled(Style::Dim, &format!("    {}", one_line(line)))?;
                out.line("")?;
            }
        }
    }
    out.line("")?;
    Ok(())
}

/// A definition as lines that can be compared: each ends with a line break.
fn indented(json: &str) -> String {
    output::indented(json) + "\n"
}

/// Rows under heads; the cell at `coloured` has the row's style.
fn table<const N: usize>(
    heads: [&str; N],
    coloured: usize,
    rows: Vec<(Style, [String; N])>,
    out: &mut Output,
) -> Result<(), Failure> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|(_, row)| row.get(column)).map(|cell| columns(cell));
        cells.chain(heads.get(column).map(|head| head.len())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let cell = |text: &str, column: usize| {
        // Nothing stands behind the last cell.
        let last = widths.iter().skip(column + 1).all(|width| *width == 0);
        let width = if last { 0 } else { widths.get(column).copied().unwrap_or(0) + 2 };
        format!("{text}{}", " ".repeat(width.saturating_sub(columns(text))))
    };
    for (column, head) in heads.iter().enumerate() {
        out.styled(Style::Bold, &cell(head, column))?;
    }
    out.line("")?;
    for (style, row) in &rows {
        for (column, text) in row.iter().enumerate() {
            let style = if column == coloured { *style } else { Style::Plain };
            out.styled(style, &cell(text, column))?;
        }
        out.line("")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(definition: &str, previous: Option<&str>) -> Tool {
        Tool {
            name: "fs__read\u{202e}".into(),
            description: "Reads\nfiles\u{1b}[2J".into(),
            verdict: "review".into(),
            reason: None,
            rules: vec!["a".into()],
            standing: "changed".into(),
            mark: previous.map(|_| "TOOL_CHANGED".into()),
            claims_read: previous.is_none(),
            hash: "sha256:x".into(),
            definition: definition.into(),
            previous: previous.map(str::to_owned),
            may_let_run: false,
        }
    }

    #[test]
    fn json_is_indented_and_nothing_else() {
        let json = r#"{"a":[1, {"b":12345678901234567890123}],"c":"x{,\"y","d":{ },"e":[]}"#;
        let expected = "{\n  \"a\": [\n    1,\n    {\n      \"b\": 12345678901234567890123\n    }\n  ],\n  \"c\": \
                        \"x{,\\\"y\",\n  \"d\": {},\n  \"e\": []\n}\n";
        assert_eq!(indented(json), expected);
        // What is no JSON ends nothing.
        for odd in ["", "\"", "\"\\", "}}}", "[[["] {
            let _ = indented(odd);
        }
    }

    #[test]
    fn what_is_accepted_is_shown_with_its_hidden_characters() {
        let mut out = Output::memory(false);
        definition(&tool("{\"name\":\"read\",\"x\":\"\\u202e\",\"y\":\"\u{202e}\"}", None), &mut out).unwrap();
        let shown = out.taken();
        assert!(shown.starts_with("fs__read\\u{202e}  says that it only reads\n"), "{shown}");
        assert!(shown.contains("files\\u{1b}[2J") && shown.contains("\"y\": \"\\u{202e}\""), "{shown}");
        let mut out = Output::memory(false);
        definition(&tool(r#"{"name":"read","n":2}"#, Some(r#"{"name":"read","n":1}"#)), &mut out).unwrap();
        let shown = out.taken();
        assert!(shown.contains("  -   \"n\": 1\n  +   \"n\": 2\n"), "{shown}");
    }

    #[test]
    fn tools_are_chosen_by_name_or_by_what_they_say() {
        let read = tool(r#"{"annotations":{"readOnlyHint":true}}"#, None);
        assert!(read.waits() && read.says_read());
        assert!(!tool("{}", None).says_read());
        assert!(!tool("[", None).says_read());
        assert_eq!(choose(vec![read], &["nothing".into()]).err().unwrap().exit, Exit::NotFound);
    }
}
