"""The server: asks the clients in every round, and evaluates the model on the test set."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from federated import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = task.Settings.of(context.run_config)
    model, nodes = task.new_model(settings), task.which_nodes(settings)
    strategy = FedAvg(**nodes)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=settings.rounds,
        timeout=settings.timeout,
        evaluate_fn=task.evaluation(settings),
    )
    print(f"accuracy {result.evaluate_metrics_serverapp[settings.rounds]['accuracy']:.1%}")
