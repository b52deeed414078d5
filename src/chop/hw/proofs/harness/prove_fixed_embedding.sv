// `fixed_embedding`: the beats of the row that a number says, of the last row where there is none.
`default_nettype none

module prove_fixed_embedding #(
    parameter int IN_WIDTH = 2,
    parameter int ROWS = 3,
    parameter int BEATS = 2,
    parameter int OUT_WIDTH = 2,
    parameter logic [ROWS*BEATS*OUT_WIDTH-1:0] TABLE = '0
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [IN_WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  logic data_in_0_ready, data_out_0_valid;
  logic [OUT_WIDTH-1:0] data_out_0, due;
  logic [IN_WIDTH-1:0] number;
  logic [7:0] place;
  logic [31:0] row;

  assign row = 32'(number) >= ROWS ? ROWS - 1 : 32'(number);
  assign due = TABLE[(row*BEATS+32'(place))*OUT_WIDTH+:OUT_WIDTH];

  fixed_embedding #(
      .DATA_IN_0_PRECISION_0       (IN_WIDTH),
      .ROWS                        (ROWS),
      .DATA_OUT_0_PRECISION_0      (OUT_WIDTH),
      .DATA_OUT_0_TENSOR_SIZE_DIM_0(BEATS),
      .DATA_OUT_0_PARALLELISM_DIM_0(1),
      .INIT_FILE                   ("table.mem")
  ) dut (
      .*
  );

  tensor_laws #(
      .WIDTH(IN_WIDTH), .IN_BEATS(1), .OUT_BEATS(BEATS), .BEAT(OUT_WIDTH), .SLOTS(5), .LATENCY(3),
      .GAP(4)
  ) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(1'b1),
      .is_fed   (data_in_0_valid),
      .is_moving(1'b1),
      .taken    (data_in_0_valid && data_in_0_ready),
      .beat     (data_in_0),
      .tensor   (number),
      .place    (place),
      .due      (due),
      .data     (data_out_0),
      .valid    (data_out_0_valid),
      .ready    (data_out_0_ready),
      .broken   (broken)
  );

endmodule

`default_nettype wire
