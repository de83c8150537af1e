//! Measures the resident memory of many idle WebSocket sessions after their handshakes.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    process::{RunSettings, Server, open_files},
    report::{self, goal, line},
    ws::{Ws, request},
};

pub async fn run(setting: &RunSettings) -> Result<()> {
    let wanted: usize = if setting.quick { 2_000 } else { 10_000 };
    report::section(&format!("Memory of {wanted} idle WebSocket sessions"), "scripts/bench idle");
    ensure!(open_files() > wanted as u64 + 200, "raise the limit of open files above {wanted} (ulimit -n)");
    let env = [
        ("COUNTERSIGN_TRANSPORTS__HTTP__MAX_CONNECTIONS", "30000"),
        ("COUNTERSIGN_TRANSPORTS__WEBSOCKET__MAX_CONNECTIONS", "30000"),
        ("COUNTERSIGN_LIMITS__MAX_SESSIONS", "30000"),
        ("COUNTERSIGN_LIMITS__MAX_STREAMS", "30000"),
    ];
    let gateway = Server::gateway(setting, &env).await?;
    // The cost of the first session is not the price of one more.
    let mut first = Ws::open(gateway.port, Ipv4Addr::LOCALHOST).await?;
    first.exchange(&request("ping", &serde_json::json!({}))).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = gateway.resident()?;
    let mut sockets = Vec::with_capacity(wanted);
    for count in 0..wanted {
        // A source address has a limited number of ports.
        let from = Ipv4Addr::new(127, 0, 0, 1 + u8::try_from(count / 5_000)?);
        sockets.push(Ws::open(gateway.port, from).await?);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let each = gateway.resident()?.saturating_sub(before) as f64 / wanted as f64;
    let pong = first.exchange(&request("ping", &serde_json::json!({}))).await;
    ensure!(pong.is_ok(), "the gateway still answers");
    line("resident memory", &format!("{:.0} MiB with all of them", gateway.resident()? as f64 / 1024.0));
    goal("", format!("{each:.1} KiB each"), "≤ 32 KiB", each <= 32.0);
    drop(sockets);
    Ok(())
}
