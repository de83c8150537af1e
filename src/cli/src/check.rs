//! `check`: checks whether an MCP server follows the protocol.

use std::{fmt, fs, io, time::Duration};

use url::Url;

use super::{
    args::check::CheckArgs,
    configuration,
    exit::{Exit, Failure},
    output::{Output, Style, columns, cut, one_line, print_note},
};
use countersign_check::{CheckResult, Group, Level, Options, ProbeError, Progress, Status, Target};
use countersign_child::environment::InheritedEnvironment;
use countersign_config::{LoadedConfig, Secret, UpstreamTarget};
use countersign_domain::text::plural;
use countersign_net::basic_authorization;
use countersign_protocol::redact::{MIN_SECRET_BYTES, redact};

pub fn run(args: &CheckArgs, out: &mut Output) -> Result<Exit, Failure> {
    let CheckedServer { target, label, secrets } = checked_server(args)?;
    let options = Options { secrets, ..options(args)? };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Internal, error))?;
    let mut write_error = None;
    let mut print = |progress: Progress<'_>| {
        if !args.json {
            let write_result = print_progress(progress, out);
            write_error = write_error.take().or(write_result.err());
        }
    };
    let checked = runtime.block_on(async {
        tokio::select! {
            checked = countersign_check::check(&target, &options, &mut print) => Some(checked),
            // Dropping the run kills its child processes, because Ctrl-C does not reach their process groups.
            _ = tokio::signal::ctrl_c() => None,
        }
    });
    if let Some(error) = write_error {
        return Err(error.into());
    }
    let checked = checked.ok_or_else(|| Failure::new(Exit::Interrupted, "stopped before all checks were run"))?;
    let mut report = checked.map_err(|error| {
        let label = label.clone().unwrap_or_else(|| target.label());
        let message = match error {
            ProbeError::UnknownRevision(_) => return usage_error(error),
            ProbeError::Unreachable(_) => format!("{label}: {error}"),
            other => format!("{label} does not answer as an MCP server: {other}"),
        };
        Failure::new(Exit::Unavailable, one_line(&redact(&message)))
    })?;
    if let Some(label) = label {
        report.target = label;
    }
    // A run that checks nothing must not pass.
    if report.checks.is_empty() {
        let (groups, revision, transport) = (args.only.join(" and "), &report.revision, report.transport);
        return Err(usage_error(format!("no check of {groups} applies to {revision} over {transport}")));
    }
    if args.json {
        out.write_json(&report.to_json().to_string())?;
    } else {
        print_summary(out, &report)?;
    }
    if let Some(file) = &args.junit {
        fs::write(file, report.to_junit())
            .map_err(|error| Failure::new(Exit::Unavailable, format!("{}: {error}", file.display())))?;
    }
    Ok(if report.complies() { Exit::Ok } else { Exit::Failed })
}

fn usage_error(message: impl fmt::Display) -> Failure {
    Failure::new(Exit::CheckUsage, message)
}

fn options(args: &CheckArgs) -> Result<Options, Failure> {
    let group = |name: &String| {
        let all = Group::ALL.iter().map(|group| group.as_str()).collect::<Vec<_>>().join(", ");
        Group::parse(name).ok_or_else(|| usage_error(format!("there is no group {name}; there are {all}")))
    };
    Ok(Options {
        revision: args.revision.clone(),
        groups: args.only.iter().map(group).collect::<Result<_, _>>()?,
        allow_writes: args.allow_writes,
        timeout: Duration::from_secs(args.timeout),
        run_limit: Duration::from_secs(args.max_time),
        ..Options::default()
    })
}

/// The server to check.
struct CheckedServer {
    target: Target,
    /// The target as other commands show it, without secrets; `None` if the configuration does not name the server.
    label: Option<String>,
    /// The secrets of the configuration; empty if it does not name the server.
    secrets: Vec<String>,
}

/// Returns the server that the arguments name.
fn checked_server(args: &CheckArgs) -> Result<CheckedServer, Failure> {
    let sources = [args.url.is_some(), args.server.is_some(), !args.command.is_empty()];
    if sources.iter().filter(|is_given| **is_given).count() != 1 {
        return Err(usage_error("name one server: --url URL, --server NAME, or -- COMMAND ARGS"));
    }
    let mut headers = Vec::new();
    for header in &args.header {
        let (name, value) = header
            .split_once(':')
            .ok_or_else(|| usage_error(format!("{header:?} is not a header: write 'Name: value'")))?;
        headers.push((name.trim().to_owned(), value.trim().to_owned()));
    }
    if let Some(name) = &args.server {
        return server_from_config(args, name, headers);
    }
    let target = if let Some(url) = &args.url {
        target_from_url(Url::parse(url).map_err(|error| usage_error(format!("{url}: {error}")))?, headers)?
    } else {
        let mut words = args.command.iter().cloned();
        let program = words.next().unwrap_or_default();
        Target::Command { program, arguments: words.collect(), env: forwarded_variables(args)?, cwd: None }
    };
    Ok(CheckedServer { target, label: None, secrets: Vec::new() })
}

/// Reads the variables named by `--env` from this process's environment.
fn forwarded_variables(args: &CheckArgs) -> Result<Vec<(String, String)>, Failure> {
    let variable = |name: &String| match std::env::var(name) {
        Ok(value) => Ok((name.clone(), value)),
        Err(_) => Err(usage_error(format!("--env {name}: there is no such variable, or it is not Unicode"))),
    };
    let variables: Vec<_> = args.env.iter().map(variable).collect::<Result<_, _>>()?;
    let withheld = InheritedEnvironment::from_process().withheld.into_iter();
    for name in withheld.filter(|name| !args.env.contains(name)) {
        print_note(&format!(
            "{name} is not passed on, because it holds a user name or a password; --env {name} passes it."
        ));
    }
    Ok(variables)
}

/// Returns the target of an address. Its user and password are sent as the gateway sends them, unless `headers` has others.
fn target_from_url(mut url: Url, mut headers: Vec<(String, String)>) -> Result<Target, Failure> {
    let is_authorization = |(name, _): &(String, String)| name.eq_ignore_ascii_case("authorization");
    if let Some(value) = basic_authorization(&url)
        && !headers.iter().any(is_authorization)
    {
        headers.push(("Authorization".to_owned(), value));
    }
    let (_, _) = (url.set_username(""), url.set_password(None));
    match url.scheme() {
        "http" | "https" => Ok(Target::Http { url, headers }),
        "ws" | "wss" => Ok(Target::WebSocket { url, headers }),
        other => Err(usage_error(format!("the scheme {other} is not supported; use http, https, ws or wss"))),
    }
}

fn server_from_config(
    args: &CheckArgs,
    name: &str,
    more_headers: Vec<(String, String)>,
) -> Result<CheckedServer, Failure> {
    let LoadedConfig { config, secrets, .. } = configuration(&args.data.flags())?;
    let server = config.upstreams.iter().find(|server| server.name == name).ok_or_else(|| {
        let all: Vec<&str> = config.upstreams.iter().map(|server| server.name.as_str()).collect();
        usage_error(format!("mcpServers has no server {name}; it has: {}", all.join(", ")))
    })?;
    let plain = |(name, Secret(value)): (&String, &Secret)| (name.clone(), value.clone());
    let target = match &server.target {
        UpstreamTarget::Command { command, args: arguments, env, cwd } => Target::Command {
            program: command.clone(),
            arguments: arguments.clone(),
            env: forwarded_variables(args)?.into_iter().chain(env.iter().map(plain)).collect(),
            cwd: cwd.clone(),
        },
        UpstreamTarget::Url { urls, headers, .. } => {
            let url = urls.first().cloned().ok_or_else(|| usage_error(format!("{name} has no address")))?;
            let mut all: Vec<_> = headers.iter().map(|(name, value)| plain((name, value))).collect();
            all.extend(more_headers);
            target_from_url(url, all)?
        }
    };
    let secrets = secrets.into_iter().map(|Secret(value)| value).filter(|value| value.len() >= MIN_SECRET_BYTES);
    Ok(CheckedServer { target, label: Some(server.label.clone()), secrets: secrets.collect() })
}

/// Prints a line when the run starts, and one for each check when it ends.
fn print_progress(progress: Progress<'_>, out: &mut Output) -> io::Result<()> {
    match progress {
        Progress::Started { server, revision, checks } => {
            let server = if server.is_empty() { "The server" } else { server };
            out.write_line(&format!("{server} speaks {revision}; {}", plural(checks, "check")))?;
        }
        Progress::Finished(checked) => print_check(checked, out)?,
    }
    out.finish()
}

fn print_check(checked: &CheckResult, out: &mut Output) -> io::Result<()> {
    let (style, mark) = match (checked.status, checked.level) {
        (Status::Passed, _) => (Style::Green, "✓"),
        (Status::Failed, Level::Must) => (Style::Red, "✗"),
        (Status::Failed, Level::Should) => (Style::Yellow, "!"),
        (Status::Skipped, _) => (Style::Dim, "-"),
    };
    let width = out.width.unwrap_or(usize::MAX);
    out.write_styled(style, mark)?;
    let head = format!(" {:<34} {:<6} ", checked.id, checked.level.to_string());
    out.write_text(&head)?;
    let free_columns = width.saturating_sub(columns(&head) + 1);
    match checked.status {
        Status::Skipped => {
            let reason = format!("skipped: {}", checked.reason);
            out.write_styled_line(Style::Dim, &cut(&one_line(&reason), free_columns))?;
        }
        _ => out.write_line(&cut(checked.requirement, free_columns))?,
    }
    if checked.status == Status::Failed {
        for (name, text) in
            [("found", checked.reason.as_str()), ("spec", &checked.spec), ("fix", checked.advice.unwrap_or_default())]
        {
            out.write_styled(Style::Dim, &format!("    {name:<6}"))?;
            out.write_line(text)?;
        }
    }
    Ok(())
}

fn print_summary(out: &mut Output, report: &countersign_check::Report) -> Result<(), Failure> {
    let failed = report.count(Status::Failed, Some(Level::Must));
    let (style, verdict) = match failed {
        0 if report.stopped.is_none() => (Style::Green, "It complies".to_owned()),
        0 => (Style::Red, "Not everything was checked".to_owned()),
        failed => (Style::Red, format!("It does not comply: {}", failed_checks(failed, "required"))),
    };
    out.write_styled(style, &verdict)?;
    out.write_line(&format!(
        ". {} passed, {}, {} skipped; {:.1} s",
        report.count(Status::Passed, None),
        failed_checks(report.count(Status::Failed, Some(Level::Should)), "recommended"),
        report.count(Status::Skipped, None),
        report.milliseconds as f64 / 1000.0
    ))?;
    if let Some(reason) = &report.stopped {
        out.write_line(&format!("The run ended before all checks were complete: {reason}."))?;
    }
    Ok(())
}

/// Formats a count of failed checks, as in `1 required check failed`.
fn failed_checks(count: usize, kind: &str) -> String {
    format!("{count} {kind} {} failed", if count == 1 { "check" } else { "checks" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_check::Report;

    fn verdict(failed: usize) -> String {
        let checked = CheckResult {
            id: "messages/answer",
            group: "messages",
            level: Level::Must,
            status: Status::Failed,
            requirement: "It is so",
            spec: "2025-11-25/basic".to_owned(),
            reason: "it is not".to_owned(),
            sent_messages: Vec::new(),
            received_messages: Vec::new(),
            advice: None,
            milliseconds: 0,
        };
        let advised = CheckResult { level: Level::Should, ..checked.clone() };
        let mut checks = vec![checked; failed];
        checks.push(advised);
        let report = Report {
            target: "x".to_owned(),
            transport: "stdio",
            revision: "2025-11-25".to_owned(),
            server: String::new(),
            milliseconds: 1500,
            stopped: None,
            checks,
        };
        let mut out = Output::memory(false);
        print_summary(&mut out, &report).unwrap();
        out.contents()
    }

    #[test]
    fn credentials_of_an_address_become_a_header() {
        let target = |url: &str, headers: &[(&str, &str)]| {
            let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            match target_from_url(url.parse().unwrap(), headers).unwrap() {
                Target::Http { url, headers } | Target::WebSocket { url, headers } => (url.to_string(), headers),
                Target::Command { .. } => panic!("it is an address"),
            }
        };
        let basic = |value: &str| vec![("Authorization".to_owned(), value.to_owned())];
        let sent = basic("Basic YWxpY2U6cEBzcw==");
        assert_eq!(
            target("https://alice:p%40ss@a.example/mcp", &[]),
            ("https://a.example/mcp".to_owned(), sent.clone())
        );
        assert_eq!(target("wss://alice:p%40ss@a.example/ws", &[]), ("wss://a.example/ws".to_owned(), sent));
        let given = target("https://alice:p%40ss@a.example/mcp", &[("authorization", "Bearer x")]);
        assert_eq!(
            given,
            ("https://a.example/mcp".to_owned(), vec![("authorization".to_owned(), "Bearer x".to_owned())])
        );
        assert_eq!(target("https://a.example/mcp", &[]).1, []);
    }

    #[test]
    fn verdict_counts_required_and_recommended_checks() {
        let rest = ". 0 passed, 1 recommended check failed, 0 skipped; 1.5 s\n";
        assert_eq!(verdict(0), format!("It complies{rest}"));
        assert_eq!(verdict(1), format!("It does not comply: 1 required check failed{rest}"));
        assert_eq!(verdict(2), format!("It does not comply: 2 required checks failed{rest}"));
    }
}
