//! Reads the target of a server: a command or addresses, with their keys.

use std::{collections::BTreeSet, path::Path};

use actix_web::http::header::{HeaderName, HeaderValue};
use url::Url;

use super::{URL_KEYS, oauth, redaction};
use crate::reader::fields::{ExpandedText, Fields, expand_text};
use crate::{
    Secret, UpstreamTarget, UrlTransport,
    error::{ValueError, invalid, quoted},
    loopback::is_loopback,
    tree::Node,
    values::read_text,
};

/// Headers that only the gateway sets.
const GATEWAY_HEADERS: [&str; 18] = [
    "accept",
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "mcp-method",
];
/// Prefixes of such headers.
const GATEWAY_HEADER_PREFIXES: [&str; 3] = ["sec-websocket-", "mcp-name", "mcp-param-"];

/// Headers of a client's request that are meant for the gateway only, such as credentials and proxy information. They
/// are never forwarded.
const PRIVATE_CLIENT_HEADERS: [&str; 9] = [
    "authorization",
    "cookie",
    "cookie2",
    "forwarded",
    "origin",
    "proxy-authenticate",
    "proxy-authorization",
    "set-cookie",
    "x-api-key",
];
/// Prefixes of such headers.
const PRIVATE_CLIENT_HEADER_PREFIXES: [&str; 4] = ["mcp-", "proxy-", "x-countersign-", "x-forwarded-"];

const COMMAND_ONLY_KEYS: [&str; 4] = ["args", "env", "cwd", "allow_own_files"];
const URL_ONLY_KEYS: [&str; 5] = ["headers", "replicas", "forward_headers", "tls", oauth::KEY];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Stdio,
    Url(UrlTransport),
}

/// Returns a placeholder for a target that could not be read.
pub(super) fn placeholder() -> UpstreamTarget {
    UpstreamTarget::Command { command: String::new(), args: Vec::new(), env: Default::default(), cwd: None }
}

/// Reads the target and its label for people. Returns `None` after reporting a problem.
pub(super) fn read(f: &mut Fields<'_>) -> Option<(UpstreamTarget, String)> {
    let transport = read_transport(f);
    match (f.has("command"), f.present_keys(URL_KEYS).as_slice()) {
        (true, []) => {
            for key in f.present_keys(URL_ONLY_KEYS) {
                f.report(key, "a server with a command does not take this key", "Take it out, or give a url.");
            }
            if let Some((key, Transport::Url(_))) = transport {
                f.report(key, "a command always uses stdio", "Write stdio, or leave it out.");
            }
            read_command(f)
        }
        (false, &[key]) => {
            for key in f.present_keys(COMMAND_ONLY_KEYS) {
                f.report(key, "a server with a url does not take this key", "Take it out, or give a command.");
            }
            let transport = match transport {
                Some((key, Transport::Stdio)) => {
                    let remedy = "Write streamable-http, sse or websocket, or leave it out.";
                    f.report(key, "a url cannot use stdio", remedy);
                    return None;
                }
                Some((_, Transport::Url(transport))) => transport,
                None if key == "httpUrl" => UrlTransport::StreamableHttp,
                None => UrlTransport::Auto,
            };
            let target = read_addresses(f, key, transport)?;
            let label = target.to_string();
            Some((target, label))
        }
        (false, []) => {
            f.report_map("the server has neither a command nor a url", "Give one of the two.");
            None
        }
        (true, &[key, ..]) => {
            f.report(key, "the server has both a command and a url", "Give one of the two.");
            None
        }
        (false, &[_, key, ..]) => {
            f.report(key, "two keys give the server's address", "Write one url; more go to replicas.");
            None
        }
    }
}

/// Reads `transport`, or `type` as desktop clients write it, and returns the key that was used.
fn read_transport(f: &mut Fields<'_>) -> Option<(&'static str, Transport)> {
    let mut read = |key: &'static str| {
        let text = f.parse(key, read_text)?;
        let word: String = text.chars().filter(|c| !matches!(c, '-' | '_' | ' ')).collect();
        let transport = match word.to_ascii_lowercase().as_str() {
            "stdio" | "local" => Transport::Stdio,
            "http" | "streamablehttp" => Transport::Url(UrlTransport::StreamableHttp),
            "sse" => Transport::Url(UrlTransport::Sse),
            "ws" | "websocket" => Transport::Url(UrlTransport::WebSocket),
            "auto" | "remote" => Transport::Url(UrlTransport::Auto),
            _ => {
                let words = "stdio, streamable-http (or http), sse, websocket (or ws), auto";
                f.report(key, format!("{} is not one of {words}", quoted(&text)), format!("Write one of: {words}."));
                return None;
            }
        };
        Some((key, transport))
    };
    match (read("transport"), read("type")) {
        (Some(ours), Some(theirs)) if ours.1 != theirs.1 => {
            f.report("type", "`type` and `transport` contradict each other", "Keep one of the two.");
            Some(ours)
        }
        (ours, theirs) => ours.or(theirs),
    }
}

fn read_command(f: &mut Fields<'_>) -> Option<(UpstreamTarget, String)> {
    let command = f.expanded_text("command")?;
    if command.value.trim().is_empty() {
        f.report("command", "the command is empty", "Name a program.");
        return None;
    }
    let base = f.base();
    let cwd = f.path("cwd");
    let program = resolve_program(f, &command, cwd.as_deref().unwrap_or(base));
    let program = f.accept("command", program)?;
    let args = f.parse_items("args", |f, node| expand_text(node, f.env()));
    let label = redaction::redact_command(&command.source, args.iter().map(|arg| arg.source.as_str()));
    let args = args.into_iter().map(|arg| arg.value).collect();
    let env = f.map_entries("env", |f, entry| {
        if entry.key.is_empty() || entry.key.contains(['=', '\0']) {
            return Err(invalid(format!("{} cannot name a variable", quoted(&entry.key)), "Choose another name."));
        }
        Ok((entry.key.clone(), Secret(expand_text(&entry.value.node, f.env())?.value)))
    });
    Some((UpstreamTarget::Command { command: program, args, env: env.into_iter().collect(), cwd }, label))
}

/// Resolves a program. A bare name is looked up in `PATH` when the child process starts; anything else is a path.
fn resolve_program(f: &Fields<'_>, command: &ExpandedText, base: &Path) -> Result<String, ValueError> {
    if !command.value.contains('/') {
        return Ok(command.value.clone());
    }
    let text = f.resolve_path(command, base)?.into_os_string().into_string();
    text.map_err(|_| invalid("the path is not Unicode", "Write it out."))
}

fn read_addresses(f: &mut Fields<'_>, key: &str, transport: UrlTransport) -> Option<UpstreamTarget> {
    let first = f.expanded_text(key)?;
    let first = f.accept(key, parse_address(&first, transport))?;
    let mut urls = vec![first];
    let replicas = f.parse_items("replicas", |f, node| parse_address(&expand_text(node, f.env())?, transport));
    for url in replicas {
        let is_web_socket = |url: &Url| url.scheme().starts_with("ws");
        if urls.contains(&url) {
            f.report("replicas", "an address is given twice", "Name each address once, and not that of url.");
        } else if urls.first().is_some_and(|first| is_web_socket(first) != is_web_socket(&url)) {
            let message = "one server cannot mix WebSocket and HTTP addresses";
            f.report("replicas", message, "Configure two servers instead.");
        } else {
            urls.push(url);
        }
    }
    let headers = read_headers(f);
    let is_plain = |url: &&Url| matches!(url.scheme(), "http" | "ws") && !is_loopback(url);
    if !headers.is_empty() && urls.iter().any(|url| is_plain(&url)) {
        f.warn("its headers go over the network unencrypted; use https");
    }
    Some(UpstreamTarget::Url { urls, headers, transport })
}

fn parse_address(text: &ExpandedText, transport: UrlTransport) -> Result<Url, ValueError> {
    // Quoted as written in the file, without the values of variables.
    let quoted_url = quoted(&redaction::redact_url(&text.source));
    let error = |reason: &str, remedy: &str| Err(invalid(format!("{quoted_url} {reason}"), remedy));
    let Ok(url) = Url::parse(text.value.trim()) else {
        return error("is not a URL", "Write https://host/path.");
    };
    let is_web_socket = match url.scheme() {
        "http" | "https" => false,
        "ws" | "wss" => true,
        _ => return error("has a scheme that the gateway does not speak", "Write http, https, ws or wss."),
    };
    if url.host_str().is_none_or(str::is_empty) {
        return error("names no host", "Write https://host/path.");
    }
    match transport {
        UrlTransport::WebSocket if !is_web_socket => {
            return error("is not a WebSocket address", "Write ws://… or wss://….");
        }
        UrlTransport::StreamableHttp | UrlTransport::Sse if is_web_socket => {
            return error("is a WebSocket address", "Write http://… or https://…, or transport: websocket.");
        }
        _ => {}
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid(
            "the URL contains a user name or password",
            "Put the credential into headers: { Authorization: … }.",
        ));
    }
    Ok(url)
}

fn read_headers(f: &mut Fields<'_>) -> Vec<(String, Secret)> {
    let mut names = BTreeSet::new();
    f.map_entries("headers", |f, entry| {
        let name = parse_header_name(&entry.key)?;
        if !names.insert(name.clone()) {
            return Err(invalid("the header is given twice", "Keep one."));
        }
        let text = expand_text(&entry.value.node, f.env())?;
        HeaderValue::from_str(&text.value).map_err(|_| {
            let remedy = "Take out line breaks and other control characters.";
            invalid("the value cannot be sent in a header", remedy)
        })?;
        Ok((name, Secret(text.value)))
    })
}

/// Returns the header name in lower case. Rejects headers that the gateway sets itself.
fn parse_header_name(text: &str) -> Result<String, ValueError> {
    let name = HeaderName::from_bytes(text.as_bytes())
        .map_err(|_| invalid(format!("{} is not a header's name", quoted(text)), "Correct it."))?;
    let name = name.as_str().to_owned();
    if GATEWAY_HEADERS.contains(&name.as_str()) || GATEWAY_HEADER_PREFIXES.iter().any(|own| name.starts_with(own)) {
        return Err(invalid(format!("{name} is set by the gateway itself"), "Take it out."));
    }
    Ok(name)
}

/// Reads the headers that are forwarded from a client's request. Credentials for the gateway are rejected in any
/// spelling.
pub(super) fn read_forwarded_headers(f: &mut Fields<'_>) -> Vec<String> {
    let mut names = f.parse_items("forward_headers", |_, node: &Node| {
        let name = parse_header_name(&read_text(node)?)?;
        let is_private = PRIVATE_CLIENT_HEADERS.contains(&name.as_str())
            || PRIVATE_CLIENT_HEADER_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        if is_private {
            let remedy = "Take it out; a credential for the server goes into headers.";
            return Err(invalid(format!("{name} is meant for the gateway and never passed on"), remedy));
        }
        Ok(name)
    });
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}
