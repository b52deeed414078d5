// Sends the first beats of each round to stream 0 and those behind them to stream 1: the way out of
// a block that tensors pass several times, back to its entry until the last pass is done.
// Latency 1 cycle, throughput 1 beat per cycle; a beat waits while either stream is full.
`default_nettype none

module stream_route #(
    parameter int DATA_WIDTH   = 8,  // bits of one beat, 1 or more
    parameter int FIRST_BEATS  = 4,  // to stream 0, in the low bits, 1 or more
    parameter int SECOND_BEATS = 4   // then to stream 1, 1 or more
) (
    input  wire logic                    clk,
    input  wire logic                    rst,
    input  wire logic [  DATA_WIDTH-1:0] data_in_0,
    input  wire logic                    data_in_0_valid,
    output      logic                    data_in_0_ready,
    output      logic [2*DATA_WIDTH-1:0] data_out_0,
    output      logic [             1:0] data_out_0_valid,
    input  wire logic [             1:0] data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_WIDTH < 1 || FIRST_BEATS < 1 || SECOND_BEATS < 1) begin : g_refuse_size
    $error("stream_route: width and beats must be 1 or more, got %0d, %0d and %0d",
           DATA_WIDTH, FIRST_BEATS, SECOND_BEATS);
  end
`endif

  localparam int BEATS = FIRST_BEATS + SECOND_BEATS;
  localparam int BEAT_WIDTH = $clog2(BEATS);

  logic [BEAT_WIDTH-1:0] beat_q;
  logic [1:0] room;
  logic is_second, push;

  assign is_second       = 32'(beat_q) >= FIRST_BEATS;
  assign data_in_0_ready = &room;
  assign push            = data_in_0_valid && data_in_0_ready;

  always_ff @(posedge clk) begin
    if (push) beat_q <= beat_q == BEAT_WIDTH'(BEATS - 1) ? '0 : beat_q + 1'b1;
    if (rst) beat_q <= '0;
  end

  for (genvar k = 0; k < 2; k++) begin : g_stream
    skid_buffer #(
        .DATA_WIDTH(DATA_WIDTH)
    ) u_skid_buffer (
        .clk             (clk),
        .rst             (rst),
        .data_in_0       (data_in_0),
        .data_in_0_valid (push && is_second == (k == 1)),
        .data_in_0_ready (room[k]),
        .data_out_0      (data_out_0[k*DATA_WIDTH+:DATA_WIDTH]),
        .data_out_0_valid(data_out_0_valid[k]),
        .data_out_0_ready(data_out_0_ready[k])
    );
  end

endmodule

`default_nettype wire
