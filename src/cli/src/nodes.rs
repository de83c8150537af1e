//! `nodes`: lists the gateways of one store, over REST.

use serde::Deserialize;

use super::{
    args::ConnectArgs,
    client,
    exit::{Exit, Failure},
    output::{Output, Style, print_note},
};

#[derive(Deserialize)]
struct NodeList {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    id: String,
    epoch: u64,
    url: String,
    version: String,
    started_at: String,
    lease_until: Option<String>,
    live: bool,
    leads: bool,
    #[serde(rename = "here")]
    is_self: bool,
    running: u64,
    same_configuration: Option<bool>,
    #[serde(default)]
    unreachable: Vec<String>,
    #[serde(default)]
    only_here: Vec<String>,
    #[serde(default)]
    breakers_open: Vec<String>,
}

pub fn run(args: &ConnectArgs, out: &mut Output) -> Result<Exit, Failure> {
    client::run(args, async |client| {
        let answer = client.get(&["nodes"], &[]).await?;
        client.print(&answer, out, |NodeList { nodes }, out| {
            for node in &nodes {
                print(node, out)?;
            }
            if let [only] = nodes.as_slice()
                && only.lease_until.is_none()
            {
                print_note("Its store is embedded, so no other gateway can share it; see docs/cluster.md.");
            }
            Ok(())
        })
    })
}

fn print(node: &Node, out: &mut Output) -> Result<(), Failure> {
    let (style, word) = if node.live { (Style::Green, "up") } else { (Style::Red, "gone") };
    out.write_styled(Style::Bold, &node.id)?;
    out.write_text("  ")?;
    out.write_styled(style, word)?;
    let leads = if node.leads { "  leads" } else { "" };
    let self_mark = if node.is_self { "  (this one)" } else { "" };
    out.write_line(&format!("{leads}  {} running  {}{self_mark}", node.running, node.url))?;
    let lease = node.lease_until.as_ref().map(|at| format!("  lease until {at}")).unwrap_or_default();
    out.write_line(&format!("  version {}  epoch {}  since {}{lease}", node.version, node.epoch, node.started_at))?;
    if !node.live {
        return Ok(());
    }
    let warn = |out: &mut Output, text: &str| out.write_styled_line(Style::Yellow, &format!("  ! {text}"));
    if node.same_configuration == Some(false) {
        warn(out, "its configuration differs from this node's")?;
    }
    for (finding, servers) in [
        ("it cannot reach", &node.unreachable),
        ("no other node reaches", &node.only_here),
        ("its circuit breaker is open for", &node.breakers_open),
    ] {
        if !servers.is_empty() {
            warn(out, &format!("{finding}: {}", servers.join(", ")))?;
        }
    }
    Ok(())
}
