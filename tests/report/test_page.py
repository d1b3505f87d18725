"""The report page and the live view, without a browser."""

import base64
import gzip
import hashlib
import http.client
import json
import math
import os
import re
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.made_runs import FAULTY_ONES, HOSTILE, append, big_page, made, run_of, watched, write
from zeno.records.files import locked
from zeno.records.folder import RECORDS_FILE, RUN_FILE
from zeno.records.record import Record
from zeno.report.page.html import build
from zeno.report.page.live import opened, serve
from zeno.report.page.pack import CELLS, bin_of, pack, packed_run
from zeno.report.run_view import read_run, runs_in
from zeno.workers.reply import ErrorKind, ReplyError

KEPT, DROPPED, ERROR, NOT_ASKED, FAULTY, LATE = 1, 2, 4, 8, 16, 32


def data_of(html: str) -> Any:
    return json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[0])


def unpacked(packed: dict[str, str], *shape: int) -> Any:
    """Decodes an array independently of the page's code, number by number if it has 24 bits."""
    raw = gzip.decompress(base64.b64decode(packed["data"]))
    if packed["kind"] == "f3":
        n = len(raw) // 3
        words = [bytes([0, raw[2 * n + i], raw[n + i], raw[i]]) for i in range(n)]
        return np.frombuffer(b"".join(words), "<f4").reshape(shape or (-1,))
    return np.frombuffer(raw, "<" + packed["kind"]).reshape(shape or (-1,))


def arrived(step: int, arrivals: list[list[int]]) -> Record:
    return Record(step, 0.1, [True, False], [1.0, 0.0], arrivals=arrivals)


def test_the_page_holds_the_staleness_of_an_asynchronous_run() -> None:
    records = [arrived(t, [[0, t], [1, max(0, t - 3)]][: 1 + t % 2]) for t in range(8)]
    run = packed_run(run_of(records), 1)
    none = 0
    expected = [[1, none if t % 2 == 0 else 1 + min(t, 3)] for t in range(8)]
    assert unpacked(run["staleness"], 8, 2).tolist() == expected
    assert run["staleness_of_workers"] == [0.0, (1 + 3 + 3 + 3) / 4]
    binned = packed_run(run_of(records), 4)
    assert unpacked(binned["staleness"], 2, 2).tolist() == [[1, 1 + 2], [1, 1 + 3]]
    assert packed_run(run_of(made()), 1)["staleness_of_workers"] is None
    assert "staleness" not in packed_run(run_of(made()), 1)


@pytest.mark.parametrize("arrivals", [[[0]], [[0, 1, 2]], [[2, 0]], [[-1, 0]], [[0, 9]], [[0, -1]], [[]]])
def test_arrivals_that_no_run_has_are_damage(tmp_path: Path, arrivals: list[list[int]]) -> None:
    fitting = [arrived(0, [[0, 0]]), arrived(1, [[1, 0], [0, 1]])]
    assert len(read_run(write(tmp_path / "good", fitting)).records) == 2
    assert len(read_run(write(tmp_path / "bad", [fitting[0], arrived(1, arrivals)])).records) == 1


def test_the_page_holds_the_values_of_the_records() -> None:
    records = made()
    [run] = data_of(build([run_of(records)]))["runs"]
    assert (run["steps"], run["workers"], run["bin"], run["from"]) == (80, 12, 1, 0)
    score, rank = unpacked(run["score"], 80, 12), unpacked(run["rank"], 80, 12)
    for record in records:
        assert record.scores is not None
        shown = [math.nan if value is None else value for value in record.scores]
        np.testing.assert_allclose(score[record.step], shown, rtol=2**-16)
        for worker, value in enumerate(record.scores):
            better = sum(other is not None and value is not None and other > value for other in record.scores)
            assert rank[record.step, worker] == (0 if value is None else 1 + better)
    assert unpacked(run["ranked"]).tolist() == [sum(s is not None for s in r.scores or ()) for r in records]
    accuracy = unpacked(run["accuracy"])
    assert [(int(i), round(float(accuracy[i]), 4)) for i in np.flatnonzero(~np.isnan(accuracy))] == [
        (step, step / 100) for step in range(9, 80, 10)
    ]
    assert np.flatnonzero(np.isinf(unpacked(run["loss"]))).tolist() == [59]
    assert run["peaks"]["phases"] == {"gradients": 0.1, "rule": 0.03}
    assert run["peaks"]["longest"] == {"step": 2, "seconds": pytest.approx(0.13)}
    np.testing.assert_allclose(unpacked(run["seconds"]["rule"]), [0.01 * (1 + t % 3) for t in range(80)], rtol=1e-6)
    assert unpacked(run["alive"]["alive"])[[19, 20]].tolist() == [12, 11]
    assert unpacked(run["errors"]["step"]).tolist() == [42]
    assert set(unpacked(run["errors"]["worker"]).tolist()) == {9}
    assert {run["texts"][i] for i in unpacked(run["errors"]["text"])} == {"raised ValueError: no"}
    assert [run["texts"][i] for i in unpacked(run["skipped"]["text"])] == ["nobody answered"]


def test_states_mark_dropped_workers_unless_no_worker_was_kept() -> None:
    records = made()
    state = unpacked(data_of(build([run_of(records)]))["runs"][0]["state"], 80, 12)
    assert not (state[:5] & (KEPT | DROPPED)).any()
    assert not (state[30] & (KEPT | DROPPED)).any()
    assert (state[10, FAULTY_ONES] & DROPPED).all()
    assert (state[:, FAULTY_ONES] & FAULTY).all()
    assert not (state[:, [0, 1, 3]] & FAULTY).any()
    assert state[42, 9] == ERROR
    assert state[55, 1] == NOT_ASKED
    assert state[20, 4] & LATE
    assert state[10, 0] == KEPT


def test_scores_of_any_size_keep_four_digits() -> None:
    values = [-1e9, 1.2345e-7, 0.5, -3.21e30, 1e300, 0.0, 7.0, None]
    record = Record(0, 0.1, [True] * 8, values)
    shown = unpacked(pack([record], 8, 1)["score"])
    assert shown[:4] == pytest.approx(values[:4], rel=1e-4)
    assert shown[4] > 3e38
    assert shown[5:7].tolist() == [0.0, 7.0]
    assert np.isnan(shown[7])


def test_equal_scores_share_a_rank() -> None:
    record = Record(0, 0.1, [True] * 5, [1.0, 2.0, 2.0, None, 0.5])
    assert unpacked(pack([record], 5, 1)["rank"]).tolist() == [3, 1, 1, 0, 4]


def test_a_rule_without_scores_has_kept_and_errors_only() -> None:
    record = Record(0, 0.1, [True, False, False], None, errors={2: ReplyError(ErrorKind.LATE, "late: 3 s")})
    found = pack([record], 3, 1)
    assert unpacked(found["state"]).tolist() == [KEPT, DROPPED, ERROR]
    assert unpacked(found["rank"]).tolist() == [0, 0, 0]
    assert np.isnan(unpacked(found["score"])).all()


def test_weights_are_packed_as_parts_of_the_largest() -> None:
    shown = Record(0, 0.1, [True, True, True, False], None, weights=[0.4, 0.1, -0.3, 0.0], own=0.8)
    old = Record(1, 0.1, [True, True, True, False], None)
    skipped = Record(2, 0.1, None, None, skipped="why")
    own_only = Record(3, 0.1, [False] * 4, None, weights=[0.0] * 4, own=1.0)
    found = pack([shown, old, skipped, own_only], 4, 1)
    # 127 * 0.1 / 0.4 = 31.75, and 127 * 0.3 / 0.4 = 95.25.
    assert unpacked(found["weight"], 4, 4).tolist() == [[127, 32, -95, 0], [0] * 4, [0] * 4, [0] * 4]
    np.testing.assert_allclose(unpacked(found["largest"]), [0.4, math.nan, math.nan, math.nan], rtol=1e-6)
    np.testing.assert_allclose(unpacked(found["own"]), [0.8, 0.0, math.nan, 1.0], rtol=1e-6)


def test_weights_of_a_bin_are_means_over_the_steps_that_kept_or_dropped_the_worker() -> None:
    died = {2: ReplyError(ErrorKind.DIED, "died")}
    first = Record(0, 0.1, [True, True, True], None, weights=[0.5, 0.25, 0.25], own=0.0)
    second = Record(1, 0.1, [True, False, False], None, weights=[0.75, 0.0, 0.0], own=0.25, errors=died)
    found = pack([first, second], 3, 2)
    # The means 0.625, 0.125 and 0.25 of a mean largest weight of 0.625: 127 * 0.2 = 25.4, and 127 * 0.4 = 50.8.
    assert unpacked(found["weight"]).tolist() == [127, 25, 51]
    assert (unpacked(found["largest"]).tolist(), unpacked(found["own"]).tolist()) == ([0.625], [0.125])


def test_long_runs_are_binned_and_bins_are_means() -> None:
    records = made(steps=70)
    found = pack(records, 12, 8)
    scores = np.array([[math.nan if s is None else s for s in r.scores or ()] for r in records])
    state = unpacked(pack(records, 12, 1)["state"], 70, 12)
    for column in range(9):
        part, states = scores[8 * column : 8 * column + 8], state[8 * column : 8 * column + 8]
        for worker in range(12):
            there = part[:, worker][~np.isnan(part[:, worker])]
            shown = unpacked(found["score"], 9, 12)[column, worker]
            assert shown == pytest.approx(there.mean(), rel=1e-4) if len(there) else np.isnan(shown)
            counted = states[:, worker] & (KEPT | DROPPED)
            share = (counted[counted > 0] == DROPPED).mean() if counted.any() else 0
            assert unpacked(found["share"], 9, 12)[column, worker] / 255 == pytest.approx(share, abs=0.003)
            assert unpacked(found["state"], 9, 12)[column, worker] == np.bitwise_or.reduce(states[:, worker])
    assert len(unpacked(found["accuracy"])) == 9


@pytest.mark.parametrize(("steps", "workers"), [(10, 20), (10_000, 200), (100_000, 200), (1_000_000, 20), (0, 0)])
def test_a_page_holds_a_limited_number_of_cells(steps: int, workers: int) -> None:
    size = bin_of(steps, workers)
    assert math.ceil(steps / size) * workers <= CELLS + workers
    assert size == 1 or (steps / (size - 1)) * workers > CELLS


def test_runs_of_a_comparison_share_the_limit_of_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zeno.report.page.html.CELLS", 200)
    run = run_of(made(steps=70))
    assert [shown["bin"] for shown in data_of(build([run, run]))["runs"]] == [9, 9]


def test_200_workers_by_10_000_steps_are_below_15_megabytes() -> None:
    assert 2e6 < len(big_page().encode()) < 15e6


def test_hostile_text_stays_data() -> None:
    records = made()
    errors = {1: ReplyError(ErrorKind.OTHER, HOSTILE)}
    records[3] = Record(3, 0.1, None, [None] * 12, errors=errors, skipped=HOSTILE, seconds={HOSTILE: 1.0})
    html = build([run_of(records, HOSTILE, **{HOSTILE: HOSTILE, "rule": "{{SCRIPT}}"})])
    assert "<img" not in html
    assert "\u2028" not in html
    assert len(re.findall("<script", html)) == 2
    [run] = data_of(html)["runs"]
    assert run["name"] == HOSTILE
    assert run["settings"][HOSTILE] == HOSTILE
    assert run["settings"]["rule"] == "{{SCRIPT}}"
    assert HOSTILE in run["texts"]
    assert HOSTILE in run["seconds"]


def test_only_the_script_and_style_of_the_page_are_allowed() -> None:
    html = build([run_of(made())])
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)[0]
    for kind, text in {
        "script-src": re.findall(r"<script>(.*?)</script>", html, re.DOTALL)[0],
        "style-src": re.findall(r"<style>(.*?)</style>", html, re.DOTALL)[0],
    }.items():
        own = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{own}';" in policy
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.findall(r'(?:src|href)="(?!data:,|#)', html.split("<style>")[0] + html.split("</style>")[1][:20_000])


def test_long_texts_are_cut_and_many_are_reduced_to_their_kind() -> None:
    texts = {step: {0: ReplyError(ErrorKind.LATE, f"no reply in {step} s")} for step in range(2100)}
    records = [Record(step, 0.1, None, None, errors=errors) for step, errors in texts.items()]
    long = Record(2100, 0.1, None, None, errors={0: ReplyError(ErrorKind.OTHER, "x" * 1000)})
    found = pack([*records, long], 1, 1)
    assert len(found["texts"]) == 2002
    assert found["texts"][-2:] == ["late", "other"]
    assert max(map(len, pack([long], 1, 1)["texts"])) == 300


def test_the_runs_in_folders_have_short_names(tmp_path: Path) -> None:
    for name in ("a/zeno", "a/mean", "b/zeno", "c"):
        write(tmp_path / name, made(steps=2))
    (tmp_path / "a" / "notes").mkdir()
    found = runs_in([tmp_path / "a", tmp_path / "b" / "zeno", tmp_path / "c", tmp_path / "c"])
    assert found == {
        "mean": tmp_path / "a" / "mean",
        "a/zeno": tmp_path / "a" / "zeno",
        "b/zeno": tmp_path / "b" / "zeno",
        "c": tmp_path / "c",
    }


def test_a_folder_without_a_run_raises_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"There is no folder .*missing\. Name a folder that"):
        runs_in([tmp_path / "missing"])
    with pytest.raises(ValueError, match=r"There is no records\.jsonl in .*Name a folder that `zeno train`"):
        runs_in([tmp_path])


def test_a_damaged_folder_is_shown_up_to_the_damage(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", made(steps=10))
    with (folder / RECORDS_FILE).open("a") as file:
        file.write('{"step": 10, "kept": [tr\n{"step": 11}\n{"ste')
    found = read_run(folder)
    assert (len(found.records), found.workers, found.planned) == (10, 12, 80)
    assert found.notes == ["records.jsonl is damaged at line 11: the rest is not shown."]
    (folder / RUN_FILE).write_text("= ?")
    found = read_run(folder, "other")
    assert (found.name, found.workers, found.planned, len(found.settings)) == ("other", 12, None, 0)
    assert "run.toml is damaged" in found.notes[0]
    (folder / RUN_FILE).unlink()
    assert "There is no run.toml" in read_run(folder).notes[0]
    assert data_of(build([read_run(folder)]))["runs"][0]["steps"] == 10


def test_records_of_an_old_version_are_shown(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", [], workers=2)
    lines = [{"step": i, "lr": 0.1, "kept": [True, False], "scores": None, "extra": 1} for i in range(3)]
    (folder / RECORDS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    [run] = data_of(build([read_run(folder)]))["runs"]
    assert run["steps"] == 3


@pytest.mark.parametrize(
    "broken",
    [
        {"kept": [True]},
        {"scores": [1.0] * 13},
        {"scores": ["a"] * 12},
        {"scores": [10**400] * 12},
        {"errors": {"12": "late: 1 s"}},
        {"faulty": [-1]},
        {"quarantined": ["x"]},
        {"late": 3},
        {"seconds": [1.0]},
        {"accuracy": "high"},
        {"errors": {"0": 5}},
        {"kept": [None] * 12},
        {"scores": ["1"] * 12},
        {"quarantined": [1.0]},
        {"evaluated": None},
        {"weights": [1.0]},
        {"weights": [None] * 12},
        {"weights": 1.0},
        {"own": None},
        {"own": "all"},
        {"note": 5},
    ],
)
def test_records_with_wrong_types_or_sizes_are_not_shown(tmp_path: Path, broken: dict[str, object]) -> None:
    records = made(steps=10)
    folder = write(tmp_path / "run", records)
    lines = [json.loads(record.to_json()) for record in records]
    lines[6].update(broken)
    (folder / RECORDS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert data_of(build([read_run(folder)]))["runs"][0]["steps"] == 6
    with watched([folder]) as (address, _):
        assert Client(address).since(0)["run"]["steps"] == 6


def test_a_run_without_steps_has_a_page(tmp_path: Path) -> None:
    [run] = data_of(build([read_run(write(tmp_path / "run", []))]))["runs"]
    assert (run["steps"], run["workers"]) == (0, 12)


class Client:
    """Makes the requests of a page."""

    def __init__(self, address: str) -> None:
        self.port = int(address.rstrip("/").rsplit(":", 1)[1])

    def get(self, path: str, host: str | None = None, method: str = "GET") -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, path, headers={"Host": host or f"127.0.0.1:{self.port}"})
        return connection.getresponse()

    def since(self, step: int, generation: int = 0, run: str = "run") -> Any:
        return json.loads(self.get(f"/since?run={run}&step={step}&generation={generation}").read())


def test_the_live_view_sends_new_steps(tmp_path: Path) -> None:
    records = made()
    folder = write(tmp_path / "run", records[:10])
    with watched([folder]) as (address, _):
        client = Client(address)
        html = client.get("/").read().decode()
        assert data_of(html)["every"] == 1.0
        assert data_of(html)["runs"][0]["steps"] == 10
        append(folder, records[10:25])
        with (folder / RECORDS_FILE).open("a") as file:
            file.write(records[25].to_json()[:40])  # a line that is being written
        answer = client.since(10)
        assert (answer["run"]["from"], answer["run"]["steps"]) == (9, 25), "the last step may have new measurements"
        assert answer["runs"] == [{"name": "run", "generation": 0, "steps": 25, "num_lines": 25, "over": False}]
        shown = unpacked(answer["run"]["score"], 16, 12)
        np.testing.assert_allclose(shown, np.array([r.scores for r in records[9:25]], float), rtol=1e-4)
        with (folder / RECORDS_FILE).open("a") as file:
            file.write(records[25].to_json()[40:] + "\n")
        append(folder, records[26:])
        answer = client.since(25)
        assert (answer["run"]["from"], answer["run"]["steps"]) == (24, 80)
        assert answer["run"]["ledger"] == json.loads(json.dumps(packed_run(run_of(records), 1)["ledger"]))
        assert answer["runs"][0]["over"] is True  # it made its 80 steps


def test_a_resumed_run_is_sent_from_its_first_step(tmp_path: Path) -> None:
    records, others = made(), made(seed=1)
    folder = write(tmp_path / "run", records[:30])
    with watched([folder]) as (address, _):
        client = Client(address)
        assert client.since(0)["run"]["steps"] == 30
        new = folder / "new"
        new.write_text("".join(record.to_json() + "\n" for record in others[:20]))
        os.replace(new, folder / RECORDS_FILE)
        answer = client.since(30, generation=0)
        assert (answer["run"]["from"], answer["run"]["steps"], answer["run"]["generation"]) == (0, 20, 1)
        append(folder, others[20:30])
        answer = client.since(20, generation=1)
        assert (answer["run"]["from"], answer["run"]["steps"], answer["run"]["generation"]) == (19, 30, 1)
        text = "".join(record.to_json() + "\n" for record in records[:40])
        (folder / RECORDS_FILE).write_text(text)  # the same file, longer than it was, with another beginning
        assert client.since(30, generation=1)["run"]["generation"] == 2


def test_damage_is_reported_while_a_run_goes_on(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", made(steps=10))
    with watched([folder]) as (address, _):
        with (folder / RECORDS_FILE).open("a") as file:
            file.write("?\n?\n")
        client = Client(address)
        assert client.since(0)["run"]["notes"] == ["records.jsonl is damaged at line 11: the rest is not shown."]
        assert client.since(0)["run"]["steps"] == 10


def test_new_runs_of_a_comparison_appear(tmp_path: Path) -> None:
    with watched([tmp_path / "out"]) as (address, _):
        client = Client(address)
        assert client.since(0)["runs"] == []
        assert data_of(client.get("/").read().decode())["runs"] == []
        write(tmp_path / "out" / "zeno", made(steps=3))
        write(tmp_path / "out" / "mean", made(steps=80))
        assert {(run["name"], run["over"]) for run in client.since(0)["runs"]} == {("zeno", False), ("mean", True)}
        assert client.since(0, run="zeno")["run"]["steps"] == 3


def test_the_live_view_answers_only_its_page(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", made(steps=3), secret="hush")
    with watched([folder]) as (address, _):
        client = Client(address)
        for host in ("evil.example", f"evil.example:{client.port}", "127.0.0.1.evil.example", "localhost:x", ""):
            answer = client.get("/", host=host or " ")
            assert answer.status == 403
            assert b"hush" not in answer.read()
        for host in (f"localhost:{client.port}", "localhost", f"[::1]:{client.port}", "127.0.0.1"):
            assert client.get("/", host=host).status == 200
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"):
            assert client.get("/", method=method).status == 405
        assert client.get("/../run.toml").status == 404
        assert client.get("/since?step=x").status == 400
        answer = client.get("/since?run=nobody")
        assert json.loads(answer.read())["run"] is None
        headers = client.get("/").headers
        assert headers["Cache-Control"] == "no-store"
        assert "connect-src 'self'" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert "Access-Control-Allow-Origin" not in headers


def test_the_live_view_is_on_loopback_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[Any] = []
    bind = socket.socket.bind

    def noted(self: socket.socket, address: Any) -> None:
        bound.append(address)
        bind(self, address)

    monkeypatch.setattr(socket.socket, "bind", noted)
    with watched([write(tmp_path / "run", made(steps=3))]) as (address, _):
        assert address.startswith("http://127.0.0.1:")
    assert [host for host, _ in bound] == ["127.0.0.1"]


def test_a_port_in_use_raises_with_a_remedy(tmp_path: Path) -> None:
    with opened([tmp_path]) as (address, _):
        port = Client(address).port
        with pytest.raises(ValueError, match=f"Found port {port}: .*Name another one, or 0 for any"), opened([], port):
            pass


def test_serving_ends_by_itself_once_all_runs_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = made()
    folder = write(tmp_path / "run", records[:70])
    said: list[str] = []
    over = threading.Event()
    monkeypatch.setattr("zeno.report.page.live.being_written", lambda folder: not over.is_set())
    thread = threading.Thread(target=serve, args=([folder],), kwargs={"linger": 0.5, "say": said.append})
    thread.start()
    time.sleep(0.7)
    assert thread.is_alive()
    assert Client(said[0]).since(70)["runs"][0]["over"] is False
    over.set()
    time.sleep(0.3)
    assert Client(said[0]).since(70)["runs"][0]["over"] is True  # still there for the last steps
    thread.join(10)
    assert not thread.is_alive()


def test_a_comparison_between_two_of_its_runs_is_not_over(tmp_path: Path) -> None:
    write(tmp_path / "all" / "one", made()[:5])
    with opened([tmp_path / "all"]) as (_, live):
        with locked(tmp_path / "all"):
            assert not live.all_over()
        assert live.all_over()
