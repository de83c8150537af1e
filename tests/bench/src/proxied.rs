//! Measures a proxied call through the gateway to a fast echo upstream, beside the same call direct and through nginx.

use std::{
    net::Ipv4Addr,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    calls::{CONNECTIONS, Caller, OverHttp, OverWs, load},
    echo::Era,
    http::{ACCEPT, Http, modern, post},
    process::{RunSettings, Server},
    report::{self, goal, line, median, micros},
    ws::{self, Ws},
};

/// The path of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CallPath {
    Direct,
    Nginx,
    Gateway,
    GatewayWs,
}

/// Connections that use the same path.
pub struct Callers(pub CallPath, pub Vec<Box<dyn Caller>>);

/// The servers of one era: an upstream, and everything in front of it.
pub struct TestStand {
    era: Era,
    echo: Server,
    nginx: Server,
    pub gateway: Server,
}

impl TestStand {
    pub async fn new(setting: &RunSettings, era: Era, tools: usize) -> Result<Self> {
        Self::on(setting, era, tools, None).await
    }

    /// Starts the servers, with the gateway's store in PostgreSQL if there is a URL.
    async fn on(setting: &RunSettings, era: Era, tools: usize, store: Option<&str>) -> Result<Self> {
        let echo = Server::echo(era, tools).await?;
        let nginx = Server::nginx(setting, echo.port).await?;
        let gateway = Server::gateway_with_upstream(setting, echo.port, store).await?;
        // A thousand tools or more are listed a moment after their server was connected.
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(Self { era, echo, nginx, gateway })
    }

    fn server(&self, way: CallPath) -> &Server {
        match way {
            CallPath::Direct => &self.echo,
            CallPath::Nginx => &self.nginx,
            CallPath::Gateway | CallPath::GatewayWs => &self.gateway,
        }
    }

    pub async fn callers(&self, way: CallPath, tool: &str) -> Result<Callers> {
        let port = self.server(way).port;
        let params =
            json!({"name": tool, "arguments": {"text": "All work and no play makes Jack a dull boy. ".repeat(5)}});
        let mut callers: Vec<Box<dyn Caller>> = Vec::new();
        for _ in 0..CONNECTIONS {
            callers.push(match way {
                CallPath::GatewayWs => {
                    let request = Rc::new(ws::request("tools/call", &params));
                    Box::new(OverWs(Ws::open(port, Ipv4Addr::LOCALHOST).await?, request))
                }
                _ => {
                    let mut http = Http::connect(port).await?;
                    let request = self.request(&mut http, port, &params).await?;
                    // It must be a result of the tool, not an error that happens to be fast.
                    let answer = http.json(&request).await?;
                    anyhow::ensure!(answer["result"]["content"][0]["text"].is_string(), "{answer}");
                    Box::new(OverHttp(http, Rc::new(request)))
                }
            });
        }
        Ok(Callers(way, callers))
    }

    async fn request(&self, http: &mut Http, port: u16, params: &Value) -> Result<Vec<u8>> {
        if self.era == Era::Modern {
            return Ok(modern(port, "tools/call", params.clone()));
        }
        let session = http.session().await?;
        let headers = [ACCEPT, ("Mcp-Session-Id", session.as_str()), ("MCP-Protocol-Version", "2025-11-25")];
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
        Ok(post(port, "/mcp", &headers, &body))
    }

    /// Returns microseconds of CPU of the server in front of the upstream (or of the upstream itself, if there is
    /// none), and of the wall clock for each request.
    async fn measure(&self, callers: &mut Callers, time: Duration) -> Result<(f64, f64)> {
        let Callers(way, callers) = callers;
        load(callers, time / 4).await?;
        let server = self.server(*way);
        let (before, since) = (server.cpu()?, Instant::now());
        let calls = load(callers, time).await? as f64;
        let cpu = micros(server.cpu()? - before) / calls;
        Ok((cpu, micros(since.elapsed()) * CONNECTIONS as f64 / calls))
    }
}

pub async fn run(setting: &RunSettings) -> Result<()> {
    report::section(
        "Proxied calls of an echo tool, beside nginx in front of the same upstream",
        "scripts/bench proxied (nginx comes with Debian's nginx-light)",
    );
    // Many short rounds: on a shared machine, disturbances last for seconds, and a ratio belongs to one moment.
    let (time, rounds) = if setting.quick { (Duration::from_millis(800), 1) } else { (Duration::from_secs(1), 21) };
    for (name, era) in [("2025-11-25", Era::Legacy), ("2026-07-28", Era::Modern)] {
        let stand = TestStand::new(setting, era, 10).await?;
        let mut direct = stand.callers(CallPath::Direct, "echo").await?;
        let mut nginx = stand.callers(CallPath::Nginx, "echo").await?;
        let mut http = stand.callers(CallPath::Gateway, "echo").await?;
        let mut web_socket = stand.callers(CallPath::GatewayWs, "echo").await?;
        let mut ratios = [vec![], vec![], vec![]];
        let mut cpu = [vec![], vec![], vec![]];
        let mut took = [vec![], vec![], vec![], vec![]];
        for _ in 0..rounds {
            // In turn, so that a busy moment of the machine affects all.
            let (_, direct) = stand.measure(&mut direct, time).await?;
            let (nginx, by_nginx) = stand.measure(&mut nginx, time).await?;
            let (http, by_http) = stand.measure(&mut http, time).await?;
            let (web_socket, by_ws) = stand.measure(&mut web_socket, time).await?;
            for (all, one) in cpu.iter_mut().zip([nginx, http, web_socket]) {
                all.push(one);
            }
            for (all, one) in took.iter_mut().zip([direct, by_nginx, by_http, by_ws]) {
                all.push(one);
            }
            ratios[0].push(http / nginx);
            ratios[1].push(web_socket / nginx);
            ratios[2].push((by_http - direct) / (by_nginx - direct));
        }
        let [nginx, http, web_socket] = cpu.map(median);
        let [direct, by_nginx, by_http, by_ws] = took.map(median);
        let [over_http, over_ws, added] = ratios.map(median);
        line(
            &format!("{name}, CPU a call"),
            &format!(
                "nginx {nginx:5.1} µs, HTTP {http:5.1} µs, WebSocket {web_socket:5.1} µs ({CONNECTIONS} connections)"
            ),
        );
        goal("", format!("HTTP {over_http:.2}"), "≤ 1.4 times nginx", over_http <= 1.4);
        line("", &format!("WebSocket to HTTP upstream: {over_ws:.2} times nginx's HTTP to HTTP"));
        line(
            &format!("{name}, a call takes"),
            &format!(
                "direct {direct:5.0} µs, nginx {by_nginx:5.0} µs, HTTP {by_http:5.0} µs, WebSocket {by_ws:5.0} µs"
            ),
        );
        goal("", format!("added {added:.2}"), "≤ 1.5 times what nginx adds", added <= 1.5);
    }
    tools(setting, time, rounds).await?;
    memory(setting).await
}

/// Compares the same call through gateways with stores in PostgreSQL and SQLite; the call uses neither.
pub async fn stores(setting: &RunSettings, url: &str) -> Result<()> {
    let (time, rounds) = if setting.quick { (Duration::from_millis(800), 1) } else { (Duration::from_secs(1), 9) };
    let sqlite = TestStand::new(setting, Era::Modern, 10).await?;
    let postgres = TestStand::on(setting, Era::Modern, 10, Some(url)).await?;
    let (mut by_sqlite, mut by_postgres) =
        (sqlite.callers(CallPath::Gateway, "echo").await?, postgres.callers(CallPath::Gateway, "echo").await?);
    let (mut of_sqlite, mut of_postgres, mut ratios) = (vec![], vec![], vec![]);
    for _ in 0..rounds {
        let (one, other) =
            (sqlite.measure(&mut by_sqlite, time).await?.0, postgres.measure(&mut by_postgres, time).await?.0);
        of_sqlite.push(one);
        of_postgres.push(other);
        ratios.push(other / one);
    }
    let ratio = median(ratios);
    line(
        "a proxied call, CPU",
        &format!("SQLite {:5.1} µs, PostgreSQL {:5.1} µs", median(of_sqlite), median(of_postgres)),
    );
    goal("", format!("{ratio:.2} times"), "touches no store: ≤ 1.1 times", ratio <= 1.1);
    Ok(())
}

/// Checks that the cost of a call does not grow with the number of tools.
async fn tools(setting: &RunSettings, time: Duration, rounds: usize) -> Result<()> {
    let few = TestStand::new(setting, Era::Modern, 10).await?;
    let many = TestStand::new(setting, Era::Modern, 10_000).await?;
    let (mut by_few, mut by_many) =
        (few.callers(CallPath::Gateway, "echo_9").await?, many.callers(CallPath::Gateway, "echo_9999").await?);
    let (mut of_few, mut of_many) = (vec![], vec![]);
    for _ in 0..rounds {
        of_few.push(few.measure(&mut by_few, time).await?.0);
        of_many.push(many.measure(&mut by_many, time).await?.0);
    }
    let (few, many) = (median(of_few), median(of_many));
    line("CPU a call with 10 and 10,000 tools", &format!("{few:5.1} µs, {many:5.1} µs"));
    goal("", format!("{:.2} times", many / few), "does not grow: ≤ 1.1 times", many / few <= 1.1);
    Ok(())
}

/// Measures the resident memory over a million calls.
async fn memory(setting: &RunSettings) -> Result<()> {
    let (warm, calls) = if setting.quick { (20_000, 50_000) } else { (100_000, 1_000_000) };
    let stand = TestStand::new(setting, Era::Modern, 10).await?;
    let Callers(_, mut callers) = stand.callers(CallPath::Gateway, "echo").await?;
    let mut made = 0;
    while made < warm {
        made += load(&mut callers, Duration::from_millis(500)).await?;
    }
    let before = stand.gateway.resident()?;
    let mut made = 0;
    while made < calls {
        made += load(&mut callers, Duration::from_millis(500)).await?;
    }
    let after = stand.gateway.resident()?;
    let grown = after.saturating_sub(before);
    line(&format!("memory over {made} calls"), &format!("{before} KiB before, {after} KiB after"));
    goal("", format!("{grown} KiB more"), "flat: under 1 MiB", grown < 1024);
    Ok(())
}
