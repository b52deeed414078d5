// The laws of a stream, for the tiles of a matrix that `tile_buffer` gives: each of GROUP rows side by
// side, along the rows or across them, the whole REPEATS times.
`default_nettype none

module prove_tile_buffer #(
    parameter int WIDTH = 1,
    parameter int ROWS = 2,
    parameter int ROW_BEATS = 2,
    parameter int GROUP = 1,
    parameter int REPEATS = 2,
    parameter bit GROUPS_FIRST = 1'b0,
    parameter int LATENCY = 1
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  localparam int BEATS = ROWS * ROW_BEATS;
  localparam int GROUPS = ROWS / GROUP;
  localparam int TILES = GROUPS * ROW_BEATS;

  logic data_in_0_ready, data_out_0_valid;
  logic [GROUP*WIDTH-1:0] data_out_0, due;

  tile_buffer #(
      .DATA_WIDTH(WIDTH), .ROWS(ROWS), .ROW_BEATS(ROW_BEATS), .GROUP(GROUP), .REPEATS(REPEATS),
      .GROUPS_FIRST(GROUPS_FIRST)
  ) dut (
      .*
  );

  logic [BEATS*WIDTH-1:0] tensor;
  logic [7:0] place;
  int tile, group, column;

  always_comb begin
    tile   = 32'(place) % TILES;
    group  = GROUPS_FIRST ? tile % GROUPS : tile / ROW_BEATS;
    column = GROUPS_FIRST ? tile / GROUPS : tile % ROW_BEATS;
    for (int row = 0; row < GROUP; row++) begin
      due[row*WIDTH+:WIDTH] = tensor[((group*GROUP+row)*ROW_BEATS+column)*WIDTH+:WIDTH];
    end
  end

  tensor_laws #(
      .WIDTH(WIDTH), .IN_BEATS(BEATS), .OUT_BEATS(TILES * REPEATS), .BEAT(GROUP * WIDTH),
      .SLOTS(4), .LATENCY(LATENCY), .GAP(BEATS + LATENCY + 1)
  ) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(1'b1),
      .is_fed   (data_in_0_valid),
      .is_moving(1'b1),
      .taken    (data_in_0_valid && data_in_0_ready),
      .beat     (data_in_0),
      .tensor   (tensor),
      .place    (place),
      .due      (due),
      .data     (data_out_0),
      .valid    (data_out_0_valid),
      .ready    (data_out_0_ready),
      .broken   (broken)
  );

endmodule

`default_nettype wire
