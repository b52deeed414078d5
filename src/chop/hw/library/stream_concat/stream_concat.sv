// Blocks of beats of two streams in turn: the concatenation of two tensors along a dimension.
// Latency 1 cycle, throughput 1 beat per cycle; a stream waits while the other has its turn.
`default_nettype none

module stream_concat #(
    parameter int DATA_WIDTH      = 8,  // bits of one beat, 1 or more
    parameter int DATA_IN_0_BEATS = 2,  // of a block, 1 or more
    parameter int DATA_IN_1_BEATS = 1,  // of a block, 1 or more
    parameter bit IS_SWAPPED      = 1'b0,  // the blocks of data_in_1 come first
    // The blocks of data_in_1 begin when a beat of data_in_0 is there: for one that never ends.
    parameter bit WAITS           = 1'b0
) (
    input  wire logic                  clk,
    input  wire logic                  rst,
    input  wire logic [DATA_WIDTH-1:0] data_in_0,
    input  wire logic                  data_in_0_valid,
    output      logic                  data_in_0_ready,
    input  wire logic [DATA_WIDTH-1:0] data_in_1,
    input  wire logic                  data_in_1_valid,
    output      logic                  data_in_1_ready,
    output      logic [DATA_WIDTH-1:0] data_out_0,
    output      logic                  data_out_0_valid,
    input  wire logic                  data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_WIDTH < 1 || DATA_IN_0_BEATS < 1 || DATA_IN_1_BEATS < 1) begin : g_refuse_size
    $error("stream_concat: width and beats must be 1 or more, got %0d, %0d and %0d",
           DATA_WIDTH, DATA_IN_0_BEATS, DATA_IN_1_BEATS);
  end
`endif

  localparam int MOST = DATA_IN_0_BEATS > DATA_IN_1_BEATS ? DATA_IN_0_BEATS : DATA_IN_1_BEATS;
  localparam int BEAT_WIDTH = $clog2(MOST + 1);

  logic [BEAT_WIDTH-1:0] beat_q, last;
  logic [DATA_WIDTH-1:0] zero;
  logic zero_valid, zero_ready, turn_q, is_one, given_valid, skid_ready;

  if (WAITS) begin : g_waits
    skid_buffer #(
        .DATA_WIDTH(DATA_WIDTH)
    ) u_ahead (
        .clk             (clk),
        .rst             (rst),
        .data_in_0       (data_in_0),
        .data_in_0_valid (data_in_0_valid),
        .data_in_0_ready (data_in_0_ready),
        .data_out_0      (zero),
        .data_out_0_valid(zero_valid),
        .data_out_0_ready(zero_ready)
    );
  end else begin : g_passes
    assign zero            = data_in_0;
    assign zero_valid      = data_in_0_valid;
    assign data_in_0_ready = zero_ready;
  end

  assign is_one          = turn_q != IS_SWAPPED;
  assign last            = BEAT_WIDTH'((is_one ? DATA_IN_1_BEATS : DATA_IN_0_BEATS) - 1);
  assign given_valid     = is_one ? data_in_1_valid && (zero_valid || !WAITS) : zero_valid;
  assign zero_ready      = skid_ready && !is_one;
  assign data_in_1_ready = skid_ready && is_one && (zero_valid || !WAITS);

  always_ff @(posedge clk) begin
    if (given_valid && skid_ready) begin
      beat_q <= beat_q == last ? '0 : beat_q + 1'b1;
      if (beat_q == last) turn_q <= !turn_q;
    end
    if (rst) begin
      beat_q <= '0;
      turn_q <= 1'b0;
    end
  end

  skid_buffer #(
      .DATA_WIDTH(DATA_WIDTH)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (is_one ? data_in_1 : zero),
      .data_in_0_valid (given_valid),
      .data_in_0_ready (skid_ready),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
