//! The sizing table of docs/operating/capture.md, recomputed.

const PAGE: &str = include_str!("../../../docs/operating/capture.md");

/// The answer that the page gives in the row whose question begins like this.
fn answer(question: &str) -> f64 {
    let row = PAGE.lines().find(|line| line.starts_with(&format!("| {question}"))).expect(question);
    let cell = row.split('|').nth(3).expect("three columns").trim();
    let digits: String = cell.chars().take_while(|c| c.is_ascii_digit() || matches!(c, '.' | ',')).collect();
    digits.replace(',', "").parse().expect(cell)
}

#[test]
fn every_answer_follows_from_its_question() {
    const WIRE_BITS: f64 = (64.0 + 8.0 + 12.0) * 8.0;
    const SESSION_S: f64 = 6.5 * 3_600.0;
    const BLOCK: f64 = 262_144.0;
    let rows = [
        ("smallest frames on 10 GbE", 10e9 / WIRE_BITS / 1e6),
        ("60 Mpps of smallest frames", 60e6 * WIRE_BITS / 1e9),
        ("60 Mpps of 170 bytes", 60e6 * 170.0 * 8.0 / 1e9),
        ("one core's budget at 60 Mpps on 8", 8.0 / 60e6 * 1e9),
        ("… on 12 cores", 12.0 / 60e6 * 1e9),
        ("… on 16 cores", 16.0 / 60e6 * 1e9),
        ("5 TB a day, evenly", 5e12 / 86_400.0 / 1e6),
        ("5 TB in a 6.5 h session", 5e12 / SESSION_S / 1e6),
        ("… ten times that in a burst", 5e12 / SESSION_S * 10.0 / 1e9),
        ("a stall that 64 blocks", 64.0 * BLOCK / (5e12 / SESSION_S) * 1e3),
        ("blocks for a 2 s stall", 2.0 * (5e12 / SESSION_S) / BLOCK),
        ("30 days of 5 TB", 150.0),
        ("a reorder window of 65,536", 65_536.0 / 1e6 * 1e3),
        ("rings of 4,096", 4_096.0 / 600_000.0 * 1e3),
    ];
    for (question, value) in rows {
        let told = answer(question);
        assert!((told - value).abs() / value < 0.005, "{question}: the page says {told}, the arithmetic {value}");
    }
}
