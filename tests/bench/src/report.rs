//! Prints the report: one line for each figure, with its goal if it has one.

use std::time::Duration;

use crate::process::{RunSettings, processor};

pub fn head(setting: &RunSettings) {
    println!(
        "Countersign benchmark, {}, {} worker{} each{}",
        processor(),
        setting.workers,
        if setting.workers == 1 { "" } else { "s" },
        if setting.quick { ", quick" } else { "" }
    );
    println!(
        "CPU is the server's, from /proc/PID/stat. Both servers run here and now, so ratios hold better than figures."
    );
}

pub fn section(title: &str, command: &str) {
    println!("\n{title}\n  reproduce: {command}");
}

pub fn line(name: &str, figures: &str) {
    println!("  {name:<38} {figures}");
}

/// Prints a ratio beside its goal.
pub fn goal(name: &str, value: String, goal: &str, reached: bool) {
    println!("  {name:<38} {value:<14} goal {goal}: {}", if reached { "reached" } else { "MISSED" });
}

pub fn tail() {
    println!();
}

pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Returns the value below which that part of the sorted times lies.
pub fn percentile(sorted: &[Duration], part: f64) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get(((last as f64) * part).round() as usize).copied().unwrap_or_default()
}

/// Returns the median of a few figures.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
